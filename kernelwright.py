"""The front door: composes the rooms' commands into one CLI."""

import sys

import click
import typer

import agent.cli
import kernelbench.cli
import results.cli
from kernelbench.errors import KernelwrightError, MissingPrerequisite

app = typer.Typer(
    name="kernelwright",
    help="Writes, verifies, measures and improves kernels for PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("doctor")(kernelbench.cli.doctor)
app.command("tasks")(kernelbench.cli.tasks)
app.command("evaluate")(kernelbench.cli.evaluate)
app.command("run")(agent.cli.run)
app.command("report")(results.cli.report)


def main() -> None:
    """Exit status: 0 done, 1 the verdict is not correct, 2 a usage error or a missing prerequisite."""
    try:
        if not sys.platform.startswith("linux"):  # namespaces, memfd, process_vm_readv
            raise MissingPrerequisite("kernelwright needs Linux", "use a Linux machine or container")
        status = app(standalone_mode=False)
    except KernelwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except click.ClickException as error:
        print(f"error: {error.format_message()} — see `kernelwright --help`", file=sys.stderr)
        status = 2
    except (KeyboardInterrupt, click.Abort):
        print("interrupted; what was recorded stays, go on with --resume", file=sys.stderr)
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
