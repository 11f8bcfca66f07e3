"""The front door: composes the rooms' commands into one CLI."""

import signal
import sys

import typer

import agent.builtin.cli
import agent.cli
import kernelbench.cli
import kernelbench.redteam.cli
import profiling.cli
import results.cli
import results.dropin.cli
import rl_training.cli
import rl_training.serving.cli
from kernelbench.errors import KernelwrightError, MissingPrerequisite

# Typer may carry its own copy of click, so the base class is taken from an exception that it exports.
ClickException: type[Exception] = typer.BadParameter.__mro__[2]
INTERRUPTED, TERMINATED = 130, 143

app = typer.Typer(
    name="kernelwright",
    add_completion=False,
    help="Writes, verifies, measures and improves kernels for PyTorch.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("doctor")(profiling.cli.doctor)
app.command("tasks")(kernelbench.cli.tasks)
app.command("evaluate")(kernelbench.cli.evaluate)
app.command("profile")(profiling.cli.profile)
app.command("redteam")(kernelbench.redteam.cli.redteam)
app.command("run")(agent.cli.run)
app.command("compile")(agent.builtin.cli.compile_task)
app.command("report")(results.cli.report)
app.command("metrics")(results.cli.metrics)
app.command("export")(results.dropin.cli.export)
app.command("gradient")(results.dropin.cli.gradient)
app.add_typer(rl_training.cli.app, name="train")
app.add_typer(rl_training.serving.cli.app, name="serve")


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
        print(f"error: {error.format_message()} — see `kernelwright --help`", file=sys.stderr)  # type: ignore[attr-defined]
        status = 2
    except (KeyboardInterrupt, typer.Abort):
        how = "terminated" if stopped_by else "interrupted"
        print(f"{how}; what was recorded stays, go on with --resume", file=sys.stderr)
        status = TERMINATED if stopped_by else INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
