"""All of a real KernelBench checkout, where the environment's KERNELBENCH_DIR names one."""

import os
from collections import Counter
from pathlib import Path

import pytest

from kernelwright.kernelbench.sources import apply, catalogue, constants, resolve

CHECKOUT = os.environ.get("KERNELBENCH_DIR")  # read at import: the tests' own environment is cleared of it

pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="KERNELBENCH_DIR names no KernelBench checkout")


@pytest.fixture
def checkout() -> Path:
    assert CHECKOUT is not None
    return Path(CHECKOUT)


def test_all_270_problems_are_tasks(checkout: Path) -> None:
    tasks = resolve(["kernelbench"], kernelbench_dir=checkout)
    assert Counter(task.level for task in tasks) == {1: 100, 2: 100, 3: 50, 4: 20}
    assert [task.id for task in tasks[100:200]] == [f"kernelbench:2/{number}" for number in range(1, 101)]
    assert all(listing.title for listing in catalogue("kernelbench", kernelbench_dir=checkout))


def test_every_constant_of_every_problem_can_be_set(checkout: Path) -> None:
    plain = resolve(["kernelbench"], kernelbench_dir=checkout)
    small = resolve(["kernelbench"], kernelbench_dir=checkout, overrides={"batch_size": "2"})
    assert sum("batch_size" in task.overrides for task in small) == 252
    for task in plain:
        values = constants(task.source)
        assert values, task.id
        changed = apply(task.source, dict.fromkeys(values, "7777"))
        assert constants(changed) == dict.fromkeys(values, "7777"), task.id
