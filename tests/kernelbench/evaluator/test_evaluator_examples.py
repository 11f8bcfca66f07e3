"""Worked examples in the evaluator's module docstrings: they give what they say."""

import doctest
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.kernelbench.evaluator.protocol import EFFORTS, Protocol
from kernelwright.kernelbench.evaluator.timing import measurement
from kernelwright.kernelbench.evaluator.timing.statistics import Timings

MODULES = [
    "correctness.budget",
    "correctness.constants",
    "correctness.families",
    "correctness.plain_sums",
    "correctness.ties",
    "memory.eviction",
    "memory.layout",
    "sandbox.process_tree",
    "timing.statistics",
]


@pytest.mark.parametrize("module", MODULES)
def test_an_example_gives_what_it_says(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"kernelwright.kernelbench.evaluator.{module}"))
    assert result.attempted and not result.failed


def test_a_round_has_the_phases_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[tuple[tuple[str, ...], int]] = []
    alone: set[int] = set()

    def phase(
        session: Any, workers: Any, order: Any, slots: Any, room: int, check: str | None
    ) -> dict[str, Any]:
        phases.append((tuple(order), len(slots)))
        assert room == 10
        return {}

    def one_by_one(session: Any, workers: Any, calls: int, check: str | None) -> dict[str, Any]:
        alone.add(calls)
        return {}

    monkeypatch.setattr(measurement, "_phase", phase)
    monkeypatch.setattr(measurement, "_alone", one_by_one)
    empty = SimpleNamespace(seconds=0.0)
    session: Any = SimpleNamespace(
        protocol=Protocol(), slots=15, calls=5, most_calls=10, run=lambda *_, flush: empty
    )
    workers: Any = dict.fromkeys(("candidate", "eager", "compile"))
    timings = Timings({}, [], [])
    for _ in range(100):
        measurement._round(session, workers, list(workers), 5, None, timings, 0)
    assert set(phases) == {(("candidate", "eager", "compile"), 5), (("compile", "eager", "candidate"), 10)}
    assert alone == {1, 2, 3}
    assert len(timings.empty_s) == 300
    assert (EFFORTS["full"].rounds, EFFORTS["full"].processes, EFFORTS["full"].half_width) == (12, 4, 0.02)
