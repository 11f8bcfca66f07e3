"""The evaluator on a GPU: memory crosses processes, the reference is as fast as itself, what is wrong is refused."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.evaluator import Measurement, Referee
from kernelwright.kernelbench.evaluator.memory import cuda as device
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant

pytestmark = [pytest.mark.gpu, pytest.mark.acceptance]

OTHER = """
import sys
import torch
from kernelwright.kernelbench.evaluator.memory.cuda import DeviceArena
device = torch.device("cuda:0")
torch.zeros(1, device=device)
arena = DeviceArena.attach(int(sys.argv[1]), int(sys.argv[2]), device)
assert arena.bytes[:4].tolist() == [1, 2, 3, 4]
arena.bytes[:4] = 7
torch.cuda.synchronize()
"""


def test_memory_is_shared_and_outlives_who_wrote_to_it() -> None:
    on = torch.device("cuda:0")
    torch.zeros(1, device=on)
    arena = device.DeviceArena.create(1000, on)
    arena.bytes[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    torch.cuda.synchronize()
    fd = arena.export()
    command = [sys.executable, "-c", OTHER, str(fd), str(arena.size)]
    subprocess.run(command, pass_fds=[fd], check=True, timeout=120)
    os.close(fd)
    assert arena.bytes[:4].tolist() == [7, 7, 7, 7]
    arena.close()


@pytest.fixture(scope="module")
def thorough(home: Path) -> Iterator[Referee]:
    with Referee.start(cache=home, device="cuda:0") as made:
        yield made


@pytest.mark.parametrize("baselines", [("eager", "compile"), ("cuda-graphs",)])
def test_the_reference_is_as_fast_as_itself(thorough: Referee, baselines: tuple[str, ...]) -> None:
    source = REFERENCE.replace("512, 1024", "8192, 1024")
    candidate = candidate_of(source.replace("class Model(", "class ModelNew("))
    evaluation = thorough.evaluate(task_of(source), candidate, Measurement(baselines))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    assert 0.95 < evaluation.speedup.eager.median < 1.05
    assert evaluation.timing is not None and not evaluation.timing.failed_baselines


def test_wrong_candidates_are_refused(brief: Referee) -> None:
    wrong = {
        variant("self.norm(x)", "self.norm(x) * 1.001"): Verdict.wrong_output,
        variant("self.norm(x)", "self.norm(x).cpu()"): Verdict.wrong_output,
        variant("self.norm(x)", "self.norm(x.add_(1.0))"): Verdict.wrong_output,
    }
    for source, verdict in wrong.items():
        found = brief.evaluate(task_of(REFERENCE), candidate_of(source), Measurement(()))
        assert found.verdict is verdict, found.reason
