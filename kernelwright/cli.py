"""The command line: the commands of all packages in one app.

A command's module is imported when the command is used, so that `kernelwright --help` does without torch,
pandas and the rooms.
"""

import importlib
import signal
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand
from typer.main import get_command

from kernelwright.kernelbench.errors import KernelwrightError, MissingPrerequisite

# Typer may carry its own copy of click, so the base class is taken from an exception that it exports.
ClickException: type[Exception] = typer.BadParameter.__mro__[2]
INTERRUPTED, TERMINATED = 130, 143

_MARKUP: Literal["markdown"] = "markdown"

app = typer.Typer(
    name="kernelwright",
    help="Write, verify, measure and improve kernels for PyTorch.",
    epilog=(
        "Examples: `kernelwright run builtin:level1/softmax` · `kernelwright evaluate task.py kernel.py` · "
        "`kernelwright compile builtin:level1/softmax --dump`"
    ),
    no_args_is_help=True,
    rich_markup_mode=_MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kernelwright import __version__  # reads the metadata of the distribution

        print(f"kernelwright {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options of `kernelwright` itself, before a command."""


class _LazyCommand(TyperCommand):
    """A command of which the name and one line of help are known before its module is imported."""

    @cached_property
    def loaded(self) -> Any:
        """The command itself; its callback here returns the function that it is made from."""
        assert self.callback is not None
        alone = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
        alone.command(self.name, epilog=self.epilog)(self.callback())
        return get_command(alone)

    @property
    def params(self) -> Any:
        return self.loaded.params

    @params.setter
    def params(self, none: Any) -> None:
        """Ignored: those that typer sets are of the callback here, which has none."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        return self.loaded.make_context(*args, **options)


def _importing(function: str) -> Callable[[], Any]:
    """Return a function that imports another, given as "module:name", and returns it."""

    def load() -> Any:
        module, name = function.split(":")
        return getattr(importlib.import_module(f"kernelwright.{module}"), name)

    return load


train = typer.Typer(help="Train a policy on measured kernels.", no_args_is_help=True)
serve = typer.Typer(help="Serve a policy, an evaluator, or a scripted model.", no_args_is_help=True)

for group, name, function, summary, example in (
    (app, "demo", "agent.demo:demo", "Optimize one built-in task in about twenty seconds.", "demo"),
    (app, "doctor", "agent.doctor:doctor", "Check what this machine, or a language model, can do.",
     "doctor --measure"),
    (app, "tasks", "kernelbench.cli:tasks", "List tasks, and find those whose speedups mean nothing.",
     "tasks --suite builtin --audit"),
    (app, "evaluate", "kernelbench.cli:evaluate", "Verify and time one candidate.",
     "evaluate builtin:level1/softmax softmax.py --json"),
    (app, "profile", "profiling.cli:profile", "Evaluate one candidate and show where its time goes.",
     "profile builtin:level1/softmax softmax.py"),
    (app, "redteam", "kernelbench.redteam.cli:redteam", "Try to cheat this installation's evaluator.",
     "redteam"),
    (app, "run", "agent.cli:run", "Optimize tasks: write, verify, time and improve a kernel for each.",
     "run builtin:level1/softmax my_task.py --rounds 5"),
    (app, "optimize", "agent.whole_model.cli:optimize",
     "Make a model's step faster, and measure the whole.",
     "optimize hf:LlamaForCausalLM --train --input input_ids=4,128:int64<32000 --out llama"),
    (app, "extract", "agent.whole_model.cli:extract_tasks",
     "Rank the parts of a model by their share of a step, and write a task for each.",
     "extract hf:llama --input input_ids=4,128:int64<32000 --out parts"),
    (app, "compile", "agent.builtin.cli:compile_task", "Print the kernels of the builtin coder for a task.",
     "compile builtin:level1/softmax --dump"),
    (app, "mcp", "agent.tool.cli:mcp", "Serve the referee to coding agents, as an MCP server.",
     "mcp builtin:level1/softmax"),
    (app, "workspace", "agent.tool.cli:workspace", "Make a folder in which a coding agent improves a kernel.",
     "workspace my_task.py work"),
    (app, "check", "agent.tool.cli:check", "Verify the kernel of a workspace.", "check"),
    (app, "measure", "agent.tool.cli:measure", "Verify and time the kernel of a workspace.", "measure"),
    (app, "history", "agent.tool.cli:history", "List the files of a workspace with their results.",
     "history"),
    (app, "submit", "agent.tool.cli:submit", "Confirm the fastest kernel of a workspace.", "submit"),
    (app, "audit", "agent.audit.cli:audit", "Grade published kernels again, and what they claim.",
     "audit runs/their_run --kernelbench-dir KernelBench --target cuda"),
    (app, "report", "results.cli:report", "Show the results of a run, or the course of a training.",
     "report runs/first --format html"),
    (app, "metrics", "results.cli:metrics", "Rank hardware metrics by their correlation with runtime.",
     "metrics runs/first"),
    (app, "export", "agent.export:export", "Package verified kernels as a drop-in for a model.",
     "export runs/first builtin:level1/rms_norm --out kernels"),
    (app, "gradient", "results.dropin.cli:gradient", "Write the gradient of a task as a separate task.",
     "gradient my_task.py --out my_task_gradient.py"),
    (train, "curate", "rl_training.cli:curate", "Make a data set from recorded runs.",
     "train curate runs/first --out data"),
    (train, "check", "rl_training.environment.cli:check",
     "Check that tasks reward a winner, and no reference.", "train check --data data"),
    (train, "sft", "rl_training.trainers.cli:sft", "Fine-tune a model on verified kernels.",
     "train sft --model MODEL --data data --out sft"),
    (train, "rl", "rl_training.trainers.cli:rl", "Train a policy with measured speedups as the reward.",
     "train rl --model sft --data data --out policy"),
    (train, "offline", "rl_training.trainers.offline_cli:offline", "Train on recorded rewards alone.",
     "train offline --model sft --data data --out policy"),
    (train, "evaluate", "rl_training.evaluation.cli:evaluate",
     "Evaluate a policy on held-out tasks: pass@k, best@k, fast_p.",
     "train evaluate --model policy --data data --base MODEL --out evaluation"),
    (train, "verl", "rl_training.cli:verl", "Write the files for training on a cluster with verl.",
     "train verl data --model MODEL --out cluster"),
    (train, "environment", "rl_training.other_trainers.cli:environment",
     "Write tasks and rewards as a package for other trainers.",
     "train environment data --server http://gpu7:8900 --out kernelwright-env"),
    (train, "push", "rl_training.pushing:push", "Push a data set or a policy to the Hugging Face Hub.",
     "train push data OWNER/NAME"),
    (train, "demo", "rl_training.demo.cli:demo", "Train a small policy from scratch, as a demonstration.",
     "train demo --out demo"),
    (serve, "policy", "rl_training.serving.cli:policy", "Serve a trained policy as a coder.",
     "serve policy policy"),
    (serve, "evaluator", "rl_training.serving.evaluator.cli:evaluator",
     "Serve evaluations and rewards over HTTP.",
     "serve evaluator --target cuda:0 --host 0.0.0.0 --token-file token.txt"),
    (serve, "scripted", "agent.llm.cli:scripted", "Serve a scripted model, to try runs without a model.",
     "serve scripted builtin:level1/softmax"),
):  # fmt: skip
    group.command(name, cls=_LazyCommand, help=summary, epilog=f"Example: `kernelwright {example}`")(
        _importing(function)
    )
app.add_typer(train, name="train")
app.add_typer(serve, name="serve")


def main() -> None:
    """Run a command and exit with its status.

    0: done; 1: the verdict is not correct; 2: a usage error or a missing prerequisite; 130 after Ctrl-C, 143
    after SIGTERM (docker stop, Slurm, systemd), which ends a command in the same way.
    """
    stopped_by: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped_by.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        if not sys.platform.startswith("linux"):  # namespaces, memfd, process_vm_readv
            raise MissingPrerequisite("kernelwright needs Linux", "use a Linux machine or container")
        status = app(standalone_mode=False)
        if status == INTERRUPTED:  # as typer reports Ctrl-C
            raise KeyboardInterrupt
    except KernelwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except ClickException as error:
        message = error.format_message().replace("Value error, ", "")  # type: ignore[attr-defined]
        if message:  # there is none where a command is missing, whose help has been printed
            print(f"error: {message} — see `kernelwright --help`", file=sys.stderr)
        status = 2 if message else 0
    except (KeyboardInterrupt, typer.Abort):
        how = "terminated" if stopped_by else "interrupted"
        print(f"{how}; what was recorded stays, go on with --resume", file=sys.stderr)
        status = TERMINATED if stopped_by else INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
