"""Tasks that compute the same, in other words and at other sizes: found by graphs and by outputs."""

from collections.abc import Iterator

import pytest

from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Task
from kernelwright.rl_training.curation.computations import Computations

pytestmark = pytest.mark.slow


def task(name: str, forward: str, size: str = "32, 48", init: str = "", given: str = "") -> Task:
    body = f"    def __init__(self{', n' if init else ''}):\n        super().__init__()\n{init}"
    source = (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
        f"class Model(nn.Module):\n{body}\n    def forward(self, x):\n{forward}\n\n\n"
        f"def get_inputs():\n    return [torch.rand({size})]\n\n\ndef get_init_inputs():\n    return [{given}]\n"
    )
    return Task(id=name, level=1, source=source)


SOFTMAX = task("softmax", "        return torch.softmax(x, dim=1)")
SHORTER = task("shorter", "        y = F.softmax(x, -1)\n        return y", "64, 300")
BY_HAND = task("by hand", "        e = x.exp()\n        return e / e.sum(1, keepdim=True)", "16, 24")
LOGARITHM = task("logarithm", "        return F.log_softmax(x, 1)")
IDENTITY = task("identity", "        return x * 1")
RELU = task("relu", "        return F.relu(x)")  # the identity, of numbers from 0 to 1
LINEAR = task("linear", "        return self.f(x)", init="        self.f = nn.Linear(n, 8)\n", given="48")
MATMUL = task(
    "matmul",
    "        return x.matmul(self.w.t()) + self.b",
    "10, 20",
    "        self.w = nn.Parameter(torch.rand(8, n))\n        self.b = nn.Parameter(torch.rand(8))\n",
    "20",
)
CONSTANT = task("constant", "        return x * 0")
DEADLY = task("deadly", "        import os\n        os._exit(3)")


@pytest.fixture(scope="module")
def computations() -> Iterator[Computations]:
    with Referee.start(cache=cache_folder()) as referee:
        yield Computations(referee.sessions.pool)


def test_equal_computations_are_found_whatever_their_text_and_size(computations: Computations) -> None:
    others = [SOFTMAX, SHORTER, DEADLY, BY_HAND, LOGARITHM, RELU, LINEAR]
    found = computations.same([SOFTMAX], others)
    assert [(pair.one, pair.other, pair.by) for pair in found] == [
        ("softmax", "shorter", "graph"),
        ("softmax", "by hand", "outputs"),
    ]
    assert computations.unknown.keys() == {"deadly"}


def test_a_task_that_ends_its_worker_is_known_by_its_graph_alone(computations: Computations) -> None:
    assert not computations.same([DEADLY], [RELU, LINEAR])
    assert "deadly" in computations.unknown


def test_outputs_are_compared_on_the_inputs_of_one(computations: Computations) -> None:
    found = computations.same([SOFTMAX, LINEAR, RELU], [BY_HAND, LOGARITHM, IDENTITY, MATMUL, CONSTANT])
    assert {(pair.one, pair.other): pair.by for pair in found} == {
        ("softmax", "by hand"): "outputs",
        ("linear", "matmul"): "outputs",
    }


def test_a_task_that_says_nothing_is_not_compared(computations: Computations) -> None:
    assert not computations.same([CONSTANT], [IDENTITY, RELU])
    assert "all of its outputs are one number" in computations.unknown["constant"]
