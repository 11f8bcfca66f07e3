"""Kernels that a candidate launches, built for a chip that need not be here; none of them runs.

What runs in a worker, behind the fence of a builder.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernelbench.chips.cupy_launches import note_cupy
from kernelbench.chips.inline_launches import note_inline
from kernelbench.chips.notes import Notebook, last_line
from kernelbench.chips.triton_launches import note_triton
from kernelbench.errors import Unavailable
from kernelbench.evaluator.channel import Channel
from kernelbench.evaluator.worker import Runner

_DEVICE, _IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__
_MAKERS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class AsOnGpu(TorchFunctionMode):
    """Tensors that say that they are on a GPU, and stay where they are.

    Memory that only kernels would write is zeros: what torch calls find there may be indices.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func == _IS_CUDA:
            return True
        if func == _DEVICE:
            return torch.device("cuda", 0)
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.cuda:
            return args[0]
        given = {name: _here(value) for name, value in (kwargs or {}).items()}
        made = func(*map(_here, args), **given)
        return made.zero_() if getattr(func, "__name__", "") in _MAKERS else made


def _here(value: Any) -> Any:
    """The argument of a torch call, the CPU where it names a GPU."""
    named = isinstance(value, (torch.device, str)) and str(value).partition(":")[0] == "cuda"
    return torch.device("cpu") if named else value


def _pretend(capability: int) -> None:
    """Have torch say what candidates ask of the GPU that they are on; what says more still fails."""
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: divmod(capability, 10)
    cuda.synchronize = lambda *_: None
    cuda.current_stream = lambda *_: SimpleNamespace(cuda_stream=0, device=torch.device("cuda", 0))
    cuda.device = lambda *_: contextlib.nullcontext()


def serve(channel: Channel) -> None:
    """Answers "open" for a chip, "load" as `kernelbench.evaluator.worker` does, and "read" after one call."""
    torch.set_grad_enabled(False)
    runner, notebook = Runner(), Notebook()
    with AsOnGpu():
        while True:
            message, fds = channel.receive_json()
            match message["do"]:
                case "open":
                    _open(notebook, message["capability"])
                    channel.send_json({})
                case "load":
                    channel.send_json(runner.load(message, fds))
                case "read":
                    channel.send_json(_read(runner, notebook))


def _open(notebook: Notebook, capability: int) -> None:
    _pretend(capability)
    if importlib.util.find_spec("triton") is not None:
        note_triton(notebook, capability)
    note_cupy(notebook, f"sm_{capability}")
    note_inline(notebook, f"sm_{capability}")


def _read(runner: Runner, notebook: Notebook) -> dict[str, Any]:
    """Call the model, if it could be loaded, and read what was built."""
    if runner.model is not None:
        try:
            runner.model(*runner.slots[0])
        except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is what there is to say
            notebook.problem(f"its call fails: {last_line(error)}")
    try:
        kernels = [asdict(each) for each in notebook.read()]
    except Unavailable as error:
        return {"kernels": [], "problems": [*notebook.problems, str(error)], "failed": notebook.failed}
    return {"kernels": kernels, "problems": notebook.problems, "failed": notebook.failed}
