"""`examine` in a separate process, which imports the verified kernel."""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Candidate, Record, Task

_REMEMBERED = 256  # examinations


class _Request(Record):
    task: Task
    candidate: Candidate
    fresh: bool
    trained: bool
    device: str


def examined_apart(
    task: Task, candidate: Candidate, fresh: bool = True, trained: bool = True, device: str = "cpu"
) -> Any:
    """Examine a kernel for a package, see `examine.examined`. Raises UsageError.

    What was examined before in this process is not examined again: a model's kernels are packaged alone, and
    all that are kept together.
    """
    asked = _Request(task=task, candidate=candidate, fresh=fresh, trained=trained, device=device)
    found = _answer(asked.model_dump_json(), task.id)
    if "error" in found:
        raise UsageError(*found["error"])
    from kernelwright.results.dropin.records import Examined

    return Examined.model_validate(found["examined"])


@lru_cache(maxsize=_REMEMBERED)
def _answer(request: str, task: str) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        # Not multiprocessing, which would run the caller's script again.
        command = [sys.executable, "-P", "-m", "kernelwright.results.dropin.apart", folder]
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, input=request, capture_output=True, text=True, env=os.environ | path)
        answer = Path(folder) / "answer.json"
        if not answer.exists():
            last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            raise UsageError(
                f"the kernel of {task} crashed the process that called it ({last})",
                "export kernels that call their C++ and CUDA C++ through kernelwright.jit",
            )
        found: Mapping[str, Any] = json.loads(answer.read_text())
        return found


def _examine(folder: Path) -> None:
    import torch

    warnings.simplefilter("ignore")
    request = _Request.model_validate_json(sys.stdin.read())
    on_gpu = request.device == "cuda" and torch.cuda.is_available()
    if request.device == "cuda" and not on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from kernelwright.results.dropin.examine import examined

    try:
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        found = examined(request.task, request.candidate, folder, device, request.fresh, request.trained)
        answer: dict[str, Any] = {"examined": found.model_dump(mode="json")}
    except UsageError as error:
        answer = {"error": [error.message, error.fix]}
    (folder / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    _examine(Path(sys.argv[1]))
