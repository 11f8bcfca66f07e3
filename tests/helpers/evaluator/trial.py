"""The reference that the evaluator tests share, and candidates made from it."""

import errno
import os
import textwrap
from collections.abc import Callable

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.records import Candidate, Evaluation, Task

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x))

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return [1024]
"""

Evaluate = Callable[..., Evaluation]


def in_child(fence: Callable[[], None], action: Callable[[], object]) -> str:
    """What `action` gives in a child that `fence` has sandboxed, or the name of the error it ends with."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        said = "neither ended well nor with an OSError"
        try:
            sandbox.no_new_privileges()
            fence()
            said = str(action())
        except OSError as error:
            said = errno.errorcode[error.errno] if error.errno else str(error)
        finally:
            os.write(write_end, said.encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def task_of(source: str, name: str = "reference") -> Task:
    return Task(id=f"file:{name}", level=1, source=textwrap.dedent(source))


def candidate_of(source: str) -> Candidate:
    source = textwrap.dedent(source)
    return Candidate(source=source, language=language_of(source), author="test")


def variant(old: str, new: str) -> str:
    """The reference as a candidate, with one piece of its text replaced."""
    assert old in REFERENCE
    return REFERENCE.replace("class Model(", "class ModelNew(").replace(old, new)
