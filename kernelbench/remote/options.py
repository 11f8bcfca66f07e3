"""Options that name servers of evaluations, for the commands that evaluate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import COMPILE_S
from kernelwright.kernelbench.records import Target
from kernelwright.kernelbench.remote.evaluator import reachable

Servers = Annotated[
    tuple[str, ...],
    typer.Option("--evaluator", metavar="URL", help="Server to evaluate on; repeatable."),
]
ServerToken = Annotated[
    Path | None, typer.Option("--evaluator-token", metavar="FILE", help="File with the server's token.")
]


def read_token(path: Path | None) -> str | None:
    """Read the first token of a file. Raises UsageError."""
    if path is None:
        return None
    try:
        lines = [line.strip() for line in path.read_text().splitlines() if not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "give the file with the server's token") from None
    found = next(filter(None, lines), None)
    if found is None or not found.isascii() or " " in found:
        raise UsageError(f"{path} has no token", "copy the server's token into it")
    return found


def servers_target(
    urls: Sequence[str],
    token: Path | None,
    *,
    target: str,
    own_kernels: float = 0.0,
    compile_limit: float = COMPILE_S,
    check_first: bool = False,
) -> Target:
    """Return what the servers evaluate on.

    Raises UsageError where they do not answer, differ, or evaluate otherwise than these options say.
    """
    first, *others = reachable(urls, read_token(token))
    for server in (first, *others):
        server.client.close()
    info, url = first.info, first.client.url
    if target != "cpu" and target.partition(":")[0] != info.target.device.partition(":")[0]:
        raise UsageError(
            f"{url} evaluates on {info.target.device}, not on {target}", "leave out --target, or name another"
        )
    if own_kernels != info.protocol.own_kernels and own_kernels:
        _refuse("--require-own-kernels", url)
    if compile_limit != COMPILE_S:
        _refuse("--compile-limit", url)
    if check_first and not info.protocol.check_first:
        _refuse("--check-first", url)
    return info.target


def _refuse(option: str, url: str) -> None:
    raise UsageError(f"{option} is for {url} to say", "leave it out here, and start the server with it")
