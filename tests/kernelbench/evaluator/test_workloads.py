"""Candidates at several sizes: the verdict is of all, and the figures are of all calls by their weights."""

import math

import pytest

from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator import CHECK, EAGER, Referee
from kernelwright.kernelbench.evaluator.workloads import at_every_size, combined, mean, speedup_of_all
from kernelwright.kernelbench.records import Candidate, Evaluation, Interval, Size, Speedup, Task, Verdict
from kernelwright.kernelbench.speed_of_light import score_of, share_of_light
from tests.helpers.evaluator.trial import candidate_of, task_of
from tests.helpers.results.run_factory import evaluation

SIZES = (
    Size(constants={"rows": "8"}, weight=9),
    Size(constants={"rows": "64"}),
    Size(constants={"rows": "7"}, hidden=True),
)
SCALED = """
import torch
rows = 8
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2, dim=-1)
def get_inputs():
    return [torch.randn(rows, 32)]
def get_init_inputs():
    return []
"""
TASK = task_of(SCALED).model_copy(update={"workload": SIZES})
ANY = SCALED.replace("Model", "ModelNew")


def timed(us: float, speedup: Interval, compile: float | None = None) -> Evaluation:
    found = evaluation(TASK, candidate_of(ANY), eager=speedup, compile=compile)
    assert found.timing is not None
    exact = Interval(median=us, low=us, high=us)
    eager = Interval(median=us * speedup.median, low=us * speedup.median, high=us * speedup.median)
    timing = found.timing.model_copy(update={"candidate_us": exact, "eager_us": eager})
    return found.model_copy(update={"timing": timing})


def of(median: float, low: float, high: float) -> Interval:
    return Interval(median=median, low=low, high=high)


def test_the_speedup_is_that_of_all_calls() -> None:
    """Nine calls of 10 and 30 µs, one of 30 and 30 µs: 120 µs instead of 300."""
    task = TASK.model_copy(update={"workload": SIZES[:2]})
    found = combined(task, [timed(10, of(3.0, 2.9, 3.1)), timed(30, of(1.0, 0.9, 1.1))])
    assert found.verdict is Verdict.correct
    assert found.timing is not None and found.timing.eager_us is not None
    assert found.timing.candidate_us.median == pytest.approx(12)
    assert found.timing.eager_us.median == pytest.approx(30)
    assert found.speedup is not None and found.speedup.eager is not None
    assert found.speedup.eager.median == pytest.approx(2.5)
    # The sizes have 0.9 and 0.1 of eager's time: 2.5 exp(-hypot(0.9 log(3 / 2.9), 0.1 log(1 / 0.9)))
    assert found.speedup.eager.low == pytest.approx(2.5 * math.exp(-0.03228), rel=1e-4)
    assert found.speedup.eager.high == pytest.approx(2.5 * math.exp(0.03101), rel=1e-4)
    assert [each.speedup.eager.median for each in found.sizes if each.speedup and each.speedup.eager] == [
        3,
        1,
    ]
    assert found.reason == "24 inputs within the error budget at all 2 sizes"
    assert found.stages.total_s == pytest.approx(7.0)


def test_one_size_keeps_its_interval() -> None:
    alone = of(2.0, 1.7, 2.5)
    assert speedup_of_all([(3.0, of(10, 9, 12))], [alone]) == pytest.approx(alone)
    assert mean([(3.0, alone)]) == pytest.approx(alone)


def test_intervals_of_equal_sizes_shrink_as_those_of_independent_ones() -> None:
    each = of(1.0, math.exp(-0.2), math.exp(0.2))
    found = mean([(1.0, each)] * 4)
    assert found.low == pytest.approx(math.exp(-0.1)) and found.high == pytest.approx(math.exp(0.1))


def test_a_time_that_is_uncertain_makes_the_mix_of_speedups_uncertain() -> None:
    sure = of(3.0, 3.0, 3.0), of(1.0, 1.0, 1.0)
    found = speedup_of_all([(1.0, of(10, 5, 20)), (1.0, of(10, 10, 10))], sure)
    # At 5 µs, the mean is (15 + 10) / 15 = 1.67; at 20 µs, (60 + 10) / 30 = 2.33; on a log scale it is linear
    # about 2.0: half of the time, which gains half of the mean: 2 exp(-0.25 log 2) and 2 exp(0.25 log 2).
    assert found == pytest.approx(of(2.0, 2 * 2**-0.25, 2 * 2**0.25))


def test_a_baseline_that_one_size_lacks_is_none_of_all() -> None:
    task = TASK.model_copy(update={"workload": SIZES[:2]})
    pair = [timed(10, of(3.0, 2.9, 3.1), compile=2.0), timed(30, of(1.0, 0.9, 1.1))]
    found = combined(task, pair)
    assert found.speedup is not None and found.speedup.compile is None
    assert found.speedup.fastest is not None  # of each size its own: (9 x 10 x 2 + 30 x 1) / 120
    assert found.speedup.fastest.median == pytest.approx(1.75)


def test_a_baseline_that_is_the_same_code_at_one_size_has_its_time_there() -> None:
    task = TASK.model_copy(update={"workload": SIZES[:2]})
    pair = [timed(10, of(3.0, 3.0, 3.0)), timed(30, of(1.0, 1.0, 1.0))]
    for number, other in enumerate(({"max-autotune": "compile"}, {})):
        timing, speedup = pair[number].timing, pair[number].speedup
        assert timing is not None and speedup is not None
        times = {"compile_us": of(20, 20, 20), "max_autotune_us": None if other else of(60, 60, 60)}
        over = {"compile": of(2, 2, 2), "max_autotune": None if other else of(2, 2, 2)}
        pair[number] = pair[number].model_copy(
            update={
                "timing": timing.model_copy(update={**times, "same_code": other}),
                "speedup": speedup.model_copy(update=over),
            }
        )
    found = combined(task, pair)
    assert found.timing is not None and found.timing.same_code == {}
    assert found.timing.max_autotune_us is not None
    assert found.timing.max_autotune_us.median == pytest.approx((9 * 20 + 60) / 10)
    assert found.speedup is not None and found.speedup.max_autotune is not None
    assert found.speedup.max_autotune.median == pytest.approx(2.0)


def with_floor(found: Evaluation, us: float | None) -> Evaluation:
    assert found.timing is not None
    return found.model_copy(update={"timing": found.timing.model_copy(update={"floor_us": us})})


def test_the_score_is_that_of_mean_times() -> None:
    """Ten calls take 120 µs, in eager 300 µs and at least 9 x 4 + 24 = 60 µs: 240 / (240 + 60)."""
    task = TASK.model_copy(update={"workload": SIZES[:2]})
    pair = [timed(10, of(3.0, 2.9, 3.1)), timed(30, of(1.0, 0.9, 1.1))]
    found = combined(task, [with_floor(each, us) for each, us in zip(pair, (4, 24), strict=True)])
    assert found.timing is not None and found.timing.floor_us == pytest.approx(6)
    assert score_of(found) == pytest.approx(0.8) and share_of_light(found) == pytest.approx(0.5)
    assert [score_of(each) for each in found.sizes] == pytest.approx([26 / 32, 0.5])


def test_a_floor_that_is_unknown_at_one_size_is_unknown_for_all() -> None:
    task = TASK.model_copy(update={"workload": SIZES[:2]})
    pair = [timed(10, of(3.0, 2.9, 3.1)), timed(30, of(1.0, 0.9, 1.1))]
    found = combined(task, [with_floor(pair[0], 4), pair[1]])
    assert found.timing is not None and found.timing.floor_us is None and score_of(found) is None


def test_what_evaluate_prints_can_be_read_as_a_record() -> None:
    found = with_floor(timed(10, of(3.0, 2.9, 3.1)), 4)
    printed = {**found.model_dump(mode="json"), "speed_of_light_score": score_of(found)}
    assert Evaluation.model_validate(printed) == found


def test_old_evaluations_load_and_those_of_one_size_are_written_as_before() -> None:
    found = timed(10, of(3.0, 2.9, 3.1))
    assert "sizes" not in found.model_dump() and "sizes" not in found.model_dump_json()
    assert Evaluation.model_validate_json(found.model_dump_json()) == found
    several = combined(TASK.model_copy(update={"workload": SIZES[:2]}), [found, found])
    assert Evaluation.model_validate_json(several.model_dump_json()) == several


def test_only_the_first_size_is_what_is_profiled() -> None:
    pair = [timed(10, of(3.0, 2.9, 3.1)), timed(30, of(1.0, 0.9, 1.1))]
    found = combined(TASK.model_copy(update={"workload": SIZES[:2]}), pair).at_first_size
    assert (found.timing, found.speedup) == (pair[0].timing, pair[0].speedup)


def test_evaluation_ends_at_the_first_size_that_fails_and_names_it() -> None:
    asked: list[str] = []

    def evaluate(task: Task, candidate: Candidate, _: object) -> Evaluation:
        asked.append(task.overrides.get("rows", "8"))
        wrong = task.overrides.get("rows") == "64"
        verdict = Verdict.wrong_output if wrong else Verdict.correct
        return evaluation(task, candidate, verdict, reason="output of (64, 32)", eager=None if wrong else 2.0)

    found = at_every_size(evaluate, TASK, candidate_of(ANY), EAGER)
    assert asked == ["8", "64"]
    assert (found.verdict, found.reason) == (Verdict.wrong_output, "at rows=64: output of (64, 32)")
    assert found.timing is None and found.speedup is None
    assert [each.verdict for each in found.sizes] == [Verdict.correct, Verdict.wrong_output]


def test_a_speedup_to_beat_is_of_all_sizes_and_ends_none_early() -> None:
    asked = []

    def evaluate(task: Task, candidate: Candidate, how: object) -> Evaluation:
        asked.append(how)
        return evaluation(task, candidate, eager=2.0)

    at_every_size(evaluate, TASK, candidate_of(ANY), EAGER.__class__(("eager",), to_beat=5.0, operators=True))
    assert [each.to_beat for each in asked] == [None] * 3  # type: ignore[attr-defined]
    assert [each.operators for each in asked] == [True, False, False]  # type: ignore[attr-defined]


@pytest.mark.builds
class TestReferee:
    def test_a_candidate_that_is_right_at_any_size(self, evaluator: Referee) -> None:
        found = evaluator.evaluate(TASK, candidate_of(ANY), CHECK)
        assert found.only_checked and len(found.sizes) == 3, found.reason
        assert found.reason.endswith("at all 3 sizes")

    def test_a_candidate_for_one_size_is_wrong_at_another(self, evaluator: Referee) -> None:
        specialized = ANY.replace("return torch.softmax(x * 2, dim=-1)", "return (x * 2).softmax(-1)[:8]")
        found = evaluator.evaluate(TASK, candidate_of(specialized), CHECK)
        assert found.verdict is Verdict.wrong_output
        assert found.reason.startswith("at rows=64: ") and len(found.sizes) == 2

    def test_what_is_wrong_at_a_hidden_size_does_not_tell_its_shape(self, evaluator: Referee) -> None:
        specialized = ANY.replace("return torch", "assert len(x) % 8 == 0, x.shape\n        return torch")
        found = evaluator.evaluate(TASK, candidate_of(specialized), CHECK)
        assert found.verdict is Verdict.runtime_error
        assert found.reason == "runtime error at a hidden size: the file has to be right at any size"
        assert "[7, 32]" in found.sizes[-1].reason  # for the user

    def test_a_reference_that_fails_at_a_size_names_it(self, evaluator: Referee) -> None:
        text = SCALED.replace("return torch.softmax", "assert len(x) < 50\n        return torch.softmax")
        with pytest.raises(TaskError, match="at rows=64: "):
            task = task_of(text).model_copy(update={"workload": SIZES})
            evaluator.evaluate(task, candidate_of(ANY), CHECK)

    def test_what_works_with_a_task_has_its_first_size(self, evaluator: Referee) -> None:
        assert evaluator.work(TASK).input_bytes == 8 * 32 * 4
        assert evaluator.sessions.open(TASK) is evaluator.sessions.open(TASK.primary)


def test_speedups_of_all_have_every_baseline() -> None:
    """A baseline that is added to `Speedup` has to be combined, too."""
    found = timed(10, of(3.0, 2.9, 3.1), compile=2.0)
    over = dict.fromkeys(Speedup.model_fields, of(2.0, 1.9, 2.1))
    found = found.model_copy(update={"speedup": Speedup.model_validate(over)})
    both = combined(TASK.model_copy(update={"workload": SIZES[:2]}), [found, found])
    assert both.speedup is not None
    assert None not in both.speedup.model_dump().values()
