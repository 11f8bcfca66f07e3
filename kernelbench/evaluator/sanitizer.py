"""compute-sanitizer over a candidate: what a GPU does not say of its memory accesses.

The tool runs in the candidate's sandbox, over a program that calls the candidate (`sanitized`). It slows
kernels down by ten to a hundred times, so it is for small shapes.
https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.refusal import Refused
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.records import Candidate, Verdict

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_COMMAND = "compute-sanitizer"
_FOUND = 86  # exit status of the tool when it found something
# Initializes CUDA and allocates, whoever the candidate is.
_NOTHING = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), 1024) == 0
"""
_UNABLE, _TOO_LONG = 1000, 1001  # beside exit statuses: it works for nobody here; it did not end
_KEPT = 4000  # characters of what it says
_FAULT = re.compile(r"Invalid|Error:|Warning:|Uninitialized|Barrier|Potential|Program hit")


def require() -> None:
    """Raise MissingPrerequisite where the tool is not installed."""
    if shutil.which(_COMMAND) is None:
        raise MissingPrerequisite(
            f"{_COMMAND} is not there", "it comes with the CUDA toolkit: add its bin folder to PATH"
        )


def sanitize(session: TaskSession, candidate: Candidate, tool: str) -> None:
    """Raise Refused with runtime_error when `tool`, of TOOLS, finds fault with the candidate."""
    require()
    entry = "kernelwright.kernelbench.evaluator.sanitizer:serve"
    with session.pool.start("candidate", entry, candidate.sha256) as worker:
        message = {
            "source": candidate.source,
            "tool": tool,
            "device": session.pool.worker_device,
            "precision": session.task.precision,
            "layout": [t.to_json() for t in session.oracle.inputs.tensors],
            "limit_s": session.limits.build_s,
            "nothing": _NOTHING if session.target.device != "cpu" else "pass",
            "program": Path(__file__).with_name("sanitized.py").read_text(),
        }
        setup = session.open_setup()
        try:
            answer = worker.ask({"do": "sanitize", **message}, 2 * session.limits.build_s + 10, [setup])
        except WorkerDied as error:
            raise Refused(Verdict.runtime_error, f"under {_COMMAND}: {error}") from None
        except WorkerTimeout:
            raise Refused(Verdict.timeout, f"{_COMMAND} could not be ended") from None
        finally:
            os.close(setup)
    said = str(answer.get("said"))
    if answer.get("status") == _UNABLE:
        raise InfrastructureError(f"{_COMMAND} does not work here: {_last(said)}", "try it by hand")
    if answer.get("status") == _TOO_LONG:
        reason = f"{_COMMAND} took more than {session.limits.build_s:g} s; give smaller sizes"
        raise Refused(Verdict.timeout, reason)
    if answer.get("status") == _FOUND:
        raise Refused(Verdict.runtime_error, f"{_COMMAND} --tool {tool}: {first_fault(said)}")
    if answer.get("status") != 0:
        raise Refused(Verdict.runtime_error, f"under {_COMMAND} --tool {tool} it failed: {_last(said)}")


def _last(said: str) -> str:
    return next((line for line in reversed(said.splitlines()) if line.strip()), "it says nothing")


def first_fault(said: str) -> str:
    """Return the first fault in the tool's report, in one line, with where it happened."""
    lines = [re.sub(r"^=+\s?", "", line) for line in said.splitlines() if line.startswith("=====")]
    start = next((number for number, line in enumerate(lines) if _FAULT.match(line)), 0)
    parts = [line.strip() for line in lines[start : start + 4] if line.strip()]
    return "; ".join(parts)[:600] or "it reports faults"


def serve(channel: Channel) -> None:
    """Serve as the sandboxed process: run the tool and return its output."""
    from kernelwright.kernelbench.evaluator.reference.loading import (
        DTYPES,  # and torch, which the referee does not import
    )

    message, (setup,) = channel.receive_json()
    path = Path.cwd() / "candidate.py"
    path.write_text(message["source"])
    told = {
        "setup": setup,
        "path": str(path),
        "device": message["device"],
        "dtype": str(DTYPES[message["precision"]] or "").removeprefix("torch."),
        "layout": message["layout"],
    }
    tool = [_COMMAND, "--tool", message["tool"], "--error-exitcode", str(_FOUND), "--print-limit", "3"]
    status, said = _run([*tool, sys.executable, "-c", message["nothing"]], setup, message["limit_s"])
    if status != 0:  # no doing of the candidate's
        channel.send_json({"status": _UNABLE, "said": said})
        return
    command = [*tool, sys.executable, "-c", message["program"], json.dumps(told)]
    status, said = _run(command, setup, message["limit_s"])
    channel.send_json({"status": status, "said": said})


def _run(command: list[str], setup: int, limit_s: float) -> tuple[int, str]:
    """Exit status and the end of the output. torch's allocator would hide accesses outside of tensors."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command,
            pass_fds=[setup],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _TOO_LONG, ""
    return done.returncode, done.stdout[-_KEPT:]
