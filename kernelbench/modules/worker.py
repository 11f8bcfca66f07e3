"""Writing a task file for a named module, in a sandboxed worker: its code never runs in this process."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import KernelwrightError, MissingPrerequisite, UsageError
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits
from kernelwright.kernelbench.machine import cache_folder, usable_cpus
from kernelwright.kernelbench.modules.inputs import names_of, parse

_TIMEOUT_S = 600.0
_NAME = re.compile(r"(?P<where>.+\.py|[A-Za-z_]\w*(\.\w+)*):(?P<name>[A-Za-z_][\w.-]*)")


def named_module(text: str) -> tuple[str, str] | None:
    """Return where a module is and its name, ("layers.py", "Block"); None for the name of another thing."""
    match = _NAME.fullmatch(text)
    if match is None or match["where"] in ("builtin", "kernelbench", "hgemm", "file", "module"):
        return None
    if match["where"].endswith((".txt", ".parquet")):  # operators of a trace
        return None
    if match["where"] == "hf" and Path(match["name"]).is_dir():
        return None  # a data set
    return match["where"], match["name"]


def write_in_worker(
    where: str,
    name: str,
    inputs: Sequence[str],
    init: Sequence[str],
    folder: Path = Path(),
    sizes: Mapping[str, str] | None = None,
) -> str:
    """Return the task file of a module; `sizes`: literals for the named axes of its inputs.

    Raises UsageError, MissingPrerequisite.
    """
    full = f"{where}:{name}"
    if where.endswith(".py") and not (folder / where).is_file():
        raise UsageError(f"there is no file {where}", "check the path")
    if not inputs:
        raise UsageError(
            f"{full} has no example inputs", "give --input for each argument: --input 8,128,256:bf16"
        )
    specs = parse(inputs)  # raises before anything is started
    lengths = {}
    for axis in names_of(specs):
        text = (sizes or {}).get(axis, "")
        if not text:
            raise UsageError(
                f"no size is given for {axis} in --input",
                f"give one, and others that count: --size {axis}=8 --size {axis}=1",
            )
        if not text.isdecimal() or not int(text):
            raise UsageError(f"{axis} is {text}, which is no length", f"give --size {axis}=8, say")
        lengths[axis] = int(text)
    request = {
        "sizes": lengths,
        "where": where,
        "name": name,
        "inputs": list(inputs),
        "init": list(init),
        "folder": str(folder.resolve()),
    }
    answer = ask_worker(f"{__name__}:serve", request, full, "try smaller sizes", _TIMEOUT_S)
    return str(answer["source"])


def ask_worker(entry: str, request: dict[str, Any], name: str, fix: str, timeout_s: float) -> dict[str, Any]:
    """Return what a worker answers about the module `name`. Raises UsageError, MissingPrerequisite.

    `entry` sends a JSON object, or what `refused` makes of an error; `fix`: of a process that ends.
    """
    with (
        WorkerPool(threads=usable_cpus(), cache=cache_folder(), limits=Limits()) as pool,
        pool.start("oracle", entry) as worker,
    ):
        try:
            answer: dict[str, Any] = json.loads(worker.request(request, timeout_s))
        except (WorkerDied, WorkerTimeout) as error:
            raise UsageError(f"{name} ended the process that ran it: {error}", fix) from None
    if "message" in answer:
        kind = MissingPrerequisite if answer["missing"] else UsageError
        raise kind(answer["message"], answer["fix"])
    return answer


def refused(error: KernelwrightError) -> dict[str, Any]:
    """Return an error as a worker's answer."""
    missing = isinstance(error, MissingPrerequisite)
    return {"message": error.message, "fix": error.fix, "missing": missing}


def serve(channel: Channel) -> None:
    """Worker entry: write one task file."""
    from kernelwright.kernelbench.modules.call_graph import said
    from kernelwright.kernelbench.modules.locating import draw, locate
    from kernelwright.kernelbench.modules.tracing import TracedCall, trace_call
    from kernelwright.kernelbench.modules.writing import free_task_source, task_source

    message, _ = channel.receive_json()
    answer: dict[str, Any]
    folder = Path(message["folder"])
    try:
        os.chdir(folder)
        specs = parse(message["inputs"])
        function = locate(message["where"], message["name"], message["init"], specs, folder)
        sizes: dict[str, int] = message["sizes"]

        def traced(lengths: Mapping[str, int]) -> tuple[TracedCall, tuple[str, ...]]:
            given = draw(specs, lengths)
            return trace_call(function, given.args, given.kwargs), given.codes

        tensors = [spec for spec in specs if spec.dtype]
        axes = {
            size: (place, axis)
            for place, spec in reversed([*enumerate(tensors)])
            for axis, size in reversed([*enumerate(spec.shape)])
            if isinstance(size, str)
        }
        source = free_task_source(traced, sizes, axes) if sizes else task_source(*traced({}))
        answer = {"source": source}
    except KernelwrightError as error:
        answer = refused(error)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        answer = refused(UsageError(f"{message['name']} fails: {said(error)}", "try it in Python"))
    channel.send_json(answer)
