"""Options that name servers of evaluations, or a cluster, for the commands that evaluate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.kernelbench.cli import with_or_without_gpu
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import COMPILE_S
from kernelwright.kernelbench.records import Target
from kernelwright.kernelbench.remote.cluster.nodes import attach, places
from kernelwright.kernelbench.remote.evaluator import reachable

Servers = Annotated[
    tuple[str, ...],
    typer.Option("--evaluator", metavar="URL", help="Server to evaluate on; repeatable."),
]
ServerToken = Annotated[
    Path | None, typer.Option("--evaluator-token", metavar="FILE", help="File with the server's token.")
]

Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="HOST", help="Ray cluster to use: auto or HOST:PORT."),
]


def check_place(servers: Sequence[str], cluster: str | None) -> None:
    """Check that evaluations have one place. Raises UsageError."""
    if servers and cluster is not None:
        raise UsageError("--cluster and --evaluator are two places to evaluate", "give one of them")


def cluster_target(address: str, target: str) -> tuple[str, tuple[str, ...]]:
    """Return the device that a cluster times on, and the chips to build for where kernels are not timed.

    The process is attached to the cluster then. Raises UsageError, MissingPrerequisite.
    """
    device: str = "cpu"
    chips: tuple[str, ...] = ()
    if target.startswith("sm_"):
        chips = with_or_without_gpu(target)[1]
    elif target != "cpu":
        if target not in ("cuda", "cuda:0"):
            raise UsageError(
                f"--target {target} names GPUs of one machine", "give --target cuda: the cluster has its own"
            )
        device = "cuda:0"  # as each actor sees its own
    attach(address)
    places(device)
    return device, chips


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
