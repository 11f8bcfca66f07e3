"""The analysis of a demo over the wide space, on results whose right answer is known."""

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.rl_training.demo.wide.claim import (
    CHANCE,
    POLICY,
    SEARCH,
    VALUE,
    PolicyClaim,
    claim_of,
    compared,
    interval,
    registered,
)
from kernelwright.rl_training.demo.wide.report import claim_table, method_table
from kernelwright.rl_training.demo.wide.settings import WideSettings
from kernelwright.rl_training.demo.wide.trial import SHARED, WideResult

SETTINGS = WideSettings()
CLAIM = claim_of(SETTINGS)
EQUAL = SETTINGS.equal
_NOISE = 0.05


def results(gain: float, spread: float, claim: PolicyClaim = CLAIM, tasks: int = 96) -> Iterator[WideResult]:
    """Results where the policy's best of 4 is `gain` times all others, its best of 16 `spread` times one."""
    rng = random.Random(1)

    def made(method: str, seed: int, task: int, best_of: dict[int, float]) -> WideResult:
        noisy = {n: value * math.exp(rng.gauss(0, _NOISE)) for n, value in best_of.items()}
        return WideResult(
            claim=claim.sha256, method=method, seed=seed, task=f"task {task}", kind="held out", valid=16,
            distinct=16, lows=(1.0,) * 16, best_of=noisy,
        )  # fmt: skip

    for task in range(tasks):
        hard = math.exp(rng.uniform(0, 2))  # tasks differ by far more than methods do
        yield made(CHANCE, SHARED, task, {1: 0.6 * hard, 4: 0.8 * hard, 16: hard, EQUAL: hard})
        yield made(SEARCH, SHARED, task, {4: hard, EQUAL: hard})
        for seed in range(3):
            mine = gain * hard
            yield made(POLICY, seed, task, {1: mine, 4: mine, 16: spread * mine})
            yield made(VALUE, seed, task, {1: hard, 4: hard})


def verdicts(gain: float, spread: float) -> list[str]:
    return [each.verdict for each in compared(CLAIM, list(results(gain, spread)))]


def test_a_better_policy_with_spread_holds() -> None:
    assert verdicts(1.1, 1.1) == ["holds"] * 4


def test_an_equal_policy_is_not_shown() -> None:
    assert verdicts(1.0, 1.1) == ["not shown"] * 3 + ["holds"]


def test_a_worse_policy_does_not_hold() -> None:
    assert verdicts(0.9, 1.1) == ["does not hold"] * 3 + ["holds"]


def test_a_collapsed_policy_does_not_hold() -> None:
    """Faster, but all its lines are one: best of 16 is best of 1."""
    assert verdicts(1.1, 1.0) == ["holds"] * 3 + ["does not hold"]


def test_the_ratio_is_what_was_put_in() -> None:
    first, *_, spread = compared(CLAIM, list(results(1.1, 1.2)))
    assert first.ratio == pytest.approx(1.1, rel=0.02) and first.low < 1.1 < first.high
    assert spread.ratio == pytest.approx(1.2, rel=0.02)
    assert first.tasks == 96 and set(first.by_seed) == {0, 1, 2}


def test_intervals_cover_the_mean_about_as_often_as_they_say() -> None:
    rng = random.Random(2)
    intervals = [interval([rng.gauss(0.5, 1) for _ in range(48)], 4000) for _ in range(200)]
    assert 0.89 < sum(low < 0.5 < high for low, high in intervals) / 200 < 0.99


def test_pairing_by_task_is_what_makes_it_certain() -> None:
    """Between tasks speeds differ sevenfold, and yet 5% show."""
    assert compared(CLAIM, list(results(1.05, 1.1)))[0].verdict == "holds"


def test_a_seed_that_differs_is_seen() -> None:
    found = [
        each.model_copy(update={"best_of": {n: value / 2 for n, value in each.best_of.items()}})
        if (each.method, each.seed) == (POLICY, 2)
        else each
        for each in results(1.1, 1.1)
    ]
    first = compared(CLAIM, found)[0]
    assert first.by_seed[2] == pytest.approx(0.55, rel=0.02) and first.by_seed[0] == pytest.approx(
        1.1, rel=0.02
    )
    assert "0.55" in claim_table([first])[2] and first.verdict == "does not hold"


def test_results_of_another_claim_are_refused() -> None:
    other = claim_of(WideSettings(rate=0.5))
    with pytest.raises(UsageError, match="another claim"):
        compared(CLAIM, list(results(1.1, 1.1, other)))


def test_a_claim_is_written_once(tmp_path: Path) -> None:
    assert registered(SETTINGS, tmp_path) == registered(SETTINGS, tmp_path) == CLAIM
    assert "best of 4, above random schedules, best of 18" in (tmp_path / "claim.md").read_text()
    with pytest.raises(UsageError, match="claims something else"):
        registered(WideSettings(entropy=0.5), tmp_path)


def test_no_claim_is_written_after_results(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(UsageError, match="no claim made before"):
        registered(SETTINGS, tmp_path)


def test_chance_is_given_all_that_a_training_costs() -> None:
    assert SETTINGS.evaluations == 1280 and EQUAL == 4 + 14


def test_the_table_has_a_row_for_each_method() -> None:
    table = method_table(list(results(1.1, 1.1)), (1, 4, 16, EQUAL))
    assert [row.split(" | ")[1] for row in table[2:]] == [POLICY, CHANCE, VALUE, SEARCH]
    assert table[4].endswith("— |")  # the value model has no best of 18
