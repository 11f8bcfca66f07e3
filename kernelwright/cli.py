"""The front door: composes the rooms' commands into one CLI."""

import signal
import sys
from typing import Annotated

import typer

from kernelwright import __version__
from kernelwright.agent import cli as agent
from kernelwright.agent import demo as agent_demo
from kernelwright.agent.builtin import cli as agent_builtin
from kernelwright.kernelbench import cli as kernelbench
from kernelwright.kernelbench.errors import KernelwrightError, MissingPrerequisite
from kernelwright.kernelbench.redteam import cli as kernelbench_redteam
from kernelwright.profiling import cli as profiling
from kernelwright.results import cli as results
from kernelwright.results.dropin import cli as results_dropin
from kernelwright.rl_training import cli as rl_training
from kernelwright.rl_training.serving import cli as rl_training_serving

# Typer may carry its own copy of click, so the base class is taken from an exception that it exports.
ClickException: type[Exception] = typer.BadParameter.__mro__[2]
INTERRUPTED, TERMINATED = 130, 143

app = typer.Typer(
    name="kernelwright",
    help="Write, verify, measure and improve kernels for PyTorch.",
    epilog=(
        "Examples: `kernelwright run builtin:level1/softmax` · `kernelwright evaluate task.py kernel.py` · "
        "`kernelwright compile builtin:level1/softmax --dump`"
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
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


for name, function, example in (
    ("demo", agent_demo.demo, "kernelwright demo"),
    ("doctor", profiling.doctor, "kernelwright doctor --measure"),
    ("tasks", kernelbench.tasks, "kernelwright tasks --suite builtin --audit"),
    ("evaluate", kernelbench.evaluate, "kernelwright evaluate builtin:level1/softmax softmax.py --json"),
    ("profile", profiling.profile, "kernelwright profile builtin:level1/softmax softmax.py"),
    ("redteam", kernelbench_redteam.redteam, "kernelwright redteam"),
    ("run", agent.run, "kernelwright run builtin:level1/softmax my_task.py --rounds 5"),
    ("compile", agent_builtin.compile_task, "kernelwright compile builtin:level1/softmax --dump"),
    ("report", results.report, "kernelwright report runs/first --format html"),
    ("metrics", results.metrics, "kernelwright metrics runs/first"),
    ("export", results_dropin.export, "kernelwright export runs/first builtin:level1/rms_norm --out kernels"),
    ("gradient", results_dropin.gradient, "kernelwright gradient my_task.py --out my_task_gradient.py"),
):
    app.command(name, epilog=f"Example: `{example}`")(function)
app.add_typer(rl_training.app, name="train")
app.add_typer(rl_training_serving.app, name="serve")


def main() -> None:
    """Exit status: 0 done, 1 the verdict is not correct, 2 a usage error or a missing prerequisite.

    130 after Ctrl-C, 143 after SIGTERM (docker stop, Slurm, systemd), which ends a command in the same way.
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
        message = error.format_message()  # type: ignore[attr-defined]
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
