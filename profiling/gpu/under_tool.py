"""A candidate's program run in its sandbox under a tool, and the tool's output."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.channel import MAX_BYTES, Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.programs import run_to_end
from kernelwright.kernelbench.records import Candidate, Verdict
from kernelwright.profiling.rung import Subject

OUTPUT = "output"  # the file, in the process's folder, that a tool or the trace is written to
_TOO_LONG = 1000  # beside exit statuses
_KEPT, _GRACE_S = 4000, 30.0  # characters of what it says; beyond the limit, for the sandbox to end it
_ROOM = MAX_BYTES // 4  # characters of the output: each may take more than one byte in a message
Look = Literal["marked", "traced"]


@dataclass(frozen=True)
class ToolRun:
    """Result of a run.

    `log`: the end of what it printed; `output`: the file's text, which the candidate can write to.
    """

    status: int
    log: str
    output: str


def require_kernels(subject: Subject) -> None:
    """Raise Unavailable unless the subject is a correct candidate on a GPU."""
    if subject.device == "cpu":
        raise Unavailable("only for candidates on a GPU")
    if subject.evaluation.verdict is not Verdict.correct:
        raise Unavailable("only for correct candidates")


def run(
    session: TaskSession, candidate: Candidate, look: Look, tool: Sequence[str], limit_s: float
) -> ToolRun:
    """Run one call under `tool`, the prefix of the command; empty for Python alone. Raises Unavailable."""
    session.pool.import_first([__name__])  # in the sandbox it could not be read
    message = {
        "do": "run",
        "source": candidate.source,
        "look": look,
        "tool": list(tool),
        "device": session.pool.worker_device,
        "precision": session.task.precision,
        "layout": [t.to_json() for t in session.oracle.inputs.tensors],
        "limit_s": limit_s,
        "program": (
            files("kernelwright.kernelbench.evaluator") / "sanitized.py"
        ).read_text(),  # which imports torch
    }
    setup = session.open_setup()
    try:
        with session.pool.start("candidate", f"{__name__}:serve", candidate.sha256) as worker:
            answer = worker.ask(message, limit_s + _GRACE_S, [setup])
    except (WorkerDied, WorkerTimeout) as error:
        raise Unavailable(f"the profiled call failed: {error}") from None
    finally:
        os.close(setup)
    status, said, output = (answer.get(name) for name in ("status", "said", "output"))
    if not (isinstance(status, int) and isinstance(said, str) and isinstance(output, str)):
        raise Unavailable("the answer of the profiled process is malformed")
    if status == _TOO_LONG:
        raise Unavailable(f"the profiled call took more than {limit_s:g} s; use smaller sizes")
    return ToolRun(status, said, output)


def require_success(ran: ToolRun, tool: str) -> None:
    """Raise Unavailable with the reason if the candidate failed under a tool."""
    if ran.status != 0:
        if "OutOfMemoryError" in ran.log:
            raise Unavailable(
                f"no GPU memory was left for the candidate under {tool}: use smaller sizes, or --workers 1"
            )
        raise Unavailable(f"the candidate failed under {tool}: {last_line(ran.log)}")


def last_line(said: str) -> str:
    """Return the last line of an error message."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


def serve(channel: Channel) -> None:
    """Serve in the sandboxed process: run one program under its tool."""
    from kernelwright.kernelbench.evaluator.reference.loading import (
        DTYPES,  # and torch, which the referee does not import
    )

    message, (setup,) = channel.receive_json()
    path, output = Path.cwd() / "candidate.py", Path.cwd() / OUTPUT
    path.write_text(message["source"])
    told = {
        "setup": setup,
        "path": str(path),
        "device": message["device"],
        "dtype": str(DTYPES[message["precision"]] or "").removeprefix("torch."),
        "layout": message["layout"],
        "look": message["look"],
        "trace": str(output),
    }
    command = [*message["tool"], sys.executable, "-c", message["program"], json.dumps(told)]
    status, said = _run(command, setup, message["limit_s"])
    text = ""
    if output.exists():
        with output.open(errors="replace") as file:
            text = file.read(_ROOM)
    channel.send_json({"status": status, "said": said, "output": text})


def _run(command: list[str], setup: int, limit_s: float) -> tuple[int, str]:
    """Return exit status and the end of the output; past the limit, kill the tool and its children."""
    here = Path.cwd()
    own = {"HOME": str(here), "TMPDIR": str(here), "LC_ALL": "C"}  # numbers as C prints them
    try:
        status, said = run_to_end(command, here, {**os.environ, **own}, limit_s, [setup])
    except subprocess.TimeoutExpired:
        return _TOO_LONG, ""
    return status, said[-_KEPT:]
