"""Nodes of a Ray cluster: the connection to it, and the slots that each node has room for.

A node of the resource `kernelwright_evaluation` is timed on as often as it offers that; where no node has it,
every GPU is timed on, or for `--target cpu` every node with CPUs:

    ray start --head                                                               # a cluster of one node
    ray start --address=HEAD:6379 --resources='{"kernelwright_evaluation": 1}'     # only these are timed on

On the CPU the other nodes build and check.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError

RESOURCE = "kernelwright_evaluation"  # also of verl's evaluation hosts
NAMESPACE = "kernelwright"
_CONNECT_S = 10.0
_START = "start one with `ray start --head`, or name another as --cluster HOST:6379"


@dataclass(frozen=True)
class SlotPlace:
    """Room for an actor on a node, the `number`-th of so many."""

    node: str  # Ray's id
    address: str
    cpus: float
    gpus: int = 0
    resources: float = 0.0  # of RESOURCE
    timed: bool = True  # False: it builds and checks
    number: int = 0
    of: int = 1


def attach(address: str) -> None:
    """Connect this process to a cluster, if it is not connected to one.

    `address`: "auto", the cluster that this machine is a node of, or HOST:PORT of its head. Raises
    UsageError; MissingPrerequisite without Ray.
    """
    try:
        from ray import init, is_initialized  # by name: a folder of temporary files is called ray, too
    except ImportError:
        raise MissingPrerequisite("--cluster needs Ray", "pip install 'kernelwright[cluster]'") from None
    if is_initialized():
        return
    _require_address(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # and no warning that it will change
    try:
        init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        first = " ".join((str(error).strip() or type(error).__name__).split())[:300]
        which = "no Ray cluster runs on this machine" if address == "auto" else f"no Ray cluster at {address}"
        raise UsageError(f"{which} ({first})" if address != "auto" else which, _START) from None
    _quieten()


def places(device: str) -> list[SlotPlace]:
    """Return the slots of the cluster for a device, "cpu" or "cuda:0". Raises UsageError if none is timed."""
    import ray

    return places_among([node for node in ray.nodes() if node["Alive"]], device)


def places_among(nodes: Sequence[dict[str, Any]], device: str) -> list[SlotPlace]:
    """Return the slots of these nodes, as Ray describes them. Raises UsageError if none is timed."""
    offered = any(node["Resources"].get(RESOURCE) for node in nodes)
    found = []
    for node in sorted(nodes, key=lambda node: (node["NodeManagerAddress"], node["NodeID"])):
        has = node["Resources"]
        cpus, gpus, own = has.get("CPU", 0.0), int(has.get("GPU", 0)), int(has.get(RESOURCE, 0))
        on_cpu = device == "cpu"
        room = min(1, own if offered else int(cpus)) if on_cpu else min(gpus, own) if offered else gpus
        for number in range(room):
            found.append(
                SlotPlace(
                    node=node["NodeID"],
                    address=node["NodeManagerAddress"],
                    cpus=float(int(cpus // room)),
                    gpus=0 if on_cpu else 1,
                    resources=1.0 if offered else 0.0,
                    number=number,
                    of=room,
                )
            )
        if not room and on_cpu and cpus >= 1:
            found.append(SlotPlace(node["NodeID"], node["NodeManagerAddress"], float(int(cpus)), timed=False))
    if not any(place.timed for place in found):
        what = "no CPUs" if device == "cpu" else "no GPU"
        count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
        raise UsageError(
            f"the Ray cluster has {what} to time on, on {count}",
            "see `ray status`; give --target cpu, or add nodes",
        )
    return found


def _require_address(address: str) -> None:
    """Check that something listens at an address, which Ray itself would wait a minute for."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if address.startswith("ray://") or not host or not port.isdigit():
        raise UsageError(
            f"--cluster {address} is no address of a cluster's head",
            "give HOST:6379, on a machine that is a node of it, or use `ray job submit`",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise UsageError(f"no Ray cluster at {address} ({error.strerror or error})", _START) from None


def _quieten() -> None:
    """Keep Ray's reports of dead workers from this process's output, which it prints whatever it is told.

    What they say comes back as an error of the call that they are about.
    """
    with contextlib.suppress(ImportError):
        from ray._private import worker

        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = lambda data, ignore_prefix: _log.debug("%s", data)


_log = logging.getLogger("kernelwright.ray")
