"""Writing a task file for a named module, in a sandboxed worker: its code never runs in this process."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits
from kernelwright.kernelbench.machine import cache_folder, usable_cpus
from kernelwright.kernelbench.modules.inputs import parse

_TIMEOUT_S = 600.0
_NAME = re.compile(r"(?P<where>.+\.py|[A-Za-z_]\w*(\.\w+)*):(?P<name>[A-Za-z_][\w.-]*)")


def named_module(text: str) -> tuple[str, str] | None:
    """Return where a module is and its name, ("layers.py", "Block"); None for the name of another thing."""
    match = _NAME.fullmatch(text)
    if match is None or match["where"] in ("builtin", "kernelbench", "file", "module"):
        return None
    if match["where"] == "hf" and Path(match["name"]).is_dir():
        return None  # a data set
    return match["where"], match["name"]


def write_in_worker(
    where: str, name: str, inputs: Sequence[str], init: Sequence[str], folder: Path = Path()
) -> str:
    """Return the task file of a module. Raises UsageError, MissingPrerequisite."""
    full = f"{where}:{name}"
    if where.endswith(".py") and not (folder / where).is_file():
        raise UsageError(f"there is no file {where}", "check the path")
    if not inputs:
        raise UsageError(
            f"{full} has no example inputs", "give --input for each argument: --input 8,128,256:bf16"
        )
    parse(inputs)  # raises before anything is started
    request = {
        "where": where,
        "name": name,
        "inputs": list(inputs),
        "init": list(init),
        "folder": str(folder.resolve()),
    }
    with (
        WorkerPool(threads=usable_cpus(), cache=cache_folder(), limits=Limits()) as pool,
        pool.start("oracle", f"{__name__}:serve") as worker,
    ):
        try:
            answer = json.loads(worker.request(request, _TIMEOUT_S))
        except (WorkerDied, WorkerTimeout) as error:
            raise UsageError(
                f"{full} ended the process that imported it: {error}", "try smaller sizes"
            ) from None
    if "source" in answer:
        return str(answer["source"])
    kind = MissingPrerequisite if answer["missing"] else UsageError
    raise kind(answer["message"], answer["fix"])


def serve(channel: Channel) -> None:
    """Worker entry: write one task file."""
    from kernelwright.kernelbench.modules.call_graph import said
    from kernelwright.kernelbench.modules.locating import draw, locate
    from kernelwright.kernelbench.modules.tracing import trace_call
    from kernelwright.kernelbench.modules.writing import task_source

    message, _ = channel.receive_json()
    answer: dict[str, str | bool]
    folder = Path(message["folder"])
    try:
        os.chdir(folder)
        specs = parse(message["inputs"])
        function = locate(message["where"], message["name"], message["init"], specs, folder)
        given = draw(specs)
        answer = {"source": task_source(trace_call(function, given.args, given.kwargs), given.codes)}
    except (UsageError, MissingPrerequisite) as error:
        missing = isinstance(error, MissingPrerequisite)
        answer = {"message": error.message, "fix": error.fix, "missing": missing}
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        answer = {
            "message": f"{message['name']} fails: {said(error)}",
            "fix": "try it in Python",
            "missing": False,
        }
    channel.send_json(answer)
