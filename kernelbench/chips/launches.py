"""Kernels that a candidate launches, built for a chip that need not be present; none of them runs.

This code runs in a worker, in the sandbox of a builder.
"""

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from kernelwright.kernelbench.chips.cuda_launches import note_cuda
from kernelwright.kernelbench.chips.cupy_launches import note_cupy
from kernelwright.kernelbench.chips.cute_launches import name_chip, note_cute
from kernelwright.kernelbench.chips.inline_launches import note_inline
from kernelwright.kernelbench.chips.notes import Notebook, last_line
from kernelwright.kernelbench.chips.tilelang_launches import note_tilelang
from kernelwright.kernelbench.chips.torch_calls import TorchCalls
from kernelwright.kernelbench.chips.triton_launches import note_triton
from kernelwright.kernelbench.emulate.torch_on_gpu import TorchOnGpu
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker import Runner
from kernelwright.kernelbench.jit import launch_mode


class Builder(Runner):
    """Runner of a candidate's host code as on a GPU, with a notebook in place of kernels."""

    def __init__(self, notebook: Notebook) -> None:
        super().__init__()
        self._notebook = notebook

    def interpret(self) -> None:
        """Leave kernels to the notebook."""
        if self.language == "tilelang":
            note_tilelang(self._notebook, self.chip)

    @contextlib.contextmanager
    def as_on_gpu(self) -> Iterator[None]:
        with launch_mode.fixed("gpu"), TorchOnGpu(self.chip, zeros=True):
            yield


def serve(channel: Channel) -> None:
    """Answer "open" for a chip, "load" as the evaluator's worker does, and "read" after one call."""
    torch.set_grad_enabled(False)
    notebook = Notebook()
    runner = Builder(notebook)
    while True:
        message, fds = channel.receive_json()
        match message["do"]:
            case "open":
                runner.chip = f"sm_{message['capability']}"
                _open(notebook, message["capability"])
                channel.send_json({})
            case "load":
                channel.send_json(runner.load(message, fds))
            case "read":
                channel.send_json(_read(runner, notebook))


def _open(notebook: Notebook, capability: int) -> None:
    if importlib.util.find_spec("triton") is not None:
        note_triton(notebook, capability)
    note_cuda(notebook, f"sm_{capability}")
    note_cupy(notebook, f"sm_{capability}")
    note_inline(notebook, f"sm_{capability}")
    name_chip(f"sm_{capability}")


def _read(runner: Builder, notebook: Notebook) -> dict[str, Any]:
    """Call the model, if it could be loaded, and read the built kernels and what torch was asked for."""
    calls = TorchCalls()
    if runner.model is not None:
        note_cute(notebook)
        notebook.forget()  # a file that tests itself, or prepares its weights
        try:
            with launch_mode.fixed("gpu"), TorchOnGpu(runner.chip), calls:
                runner.model(*runner.slots[0])
        except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is what there is to say
            notebook.problem(f"its call failed: {last_line(error)}")
    try:
        kernels = [asdict(each) for each in notebook.read()]
    except Unavailable as error:
        return {"kernels": [], "problems": [*notebook.problems, str(error)], "failed": notebook.failed}
    torch_calls = [asdict(each) for each in calls.found]
    return {
        "kernels": kernels,
        "problems": notebook.problems,
        "failed": notebook.failed,
        "torch_calls": torch_calls,
    }
