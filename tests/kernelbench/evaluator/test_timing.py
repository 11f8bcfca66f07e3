"""The judge's clock: what it makes of block times, and of real candidates that are faster, slower or forged."""

import pytest
from trial import REFERENCE, Evaluate, candidate_of, task_of, variant

from kernelbench.evaluator import ALL_BASELINES, Evaluator
from kernelbench.evaluator.timing import TimedBlock, Timings, interval
from kernelbench.records import Verdict

RETURN = "return torch.nn.functional.gelu(self.norm(x))"


def test_what_a_block_costs_once_does_not_count() -> None:
    short, long = TimedBlock(4, 0.005 + 4 * 0.01), TimedBlock(8, 0.005 + 8 * 0.01)
    assert short.call_s(0.005) == pytest.approx(0.01)
    assert long.call_s(0.005) == pytest.approx(0.01)


def test_a_block_shorter_than_an_empty_one_still_took_time() -> None:
    assert TimedBlock(4, 0.004).call_s(0.005) == pytest.approx(0.00025)


def test_being_slow_in_short_blocks_on_purpose_does_not_pay() -> None:
    """The slope of these two blocks would be a tenth of what a call takes."""
    eager = [TimedBlock(4, 0.040), TimedBlock(8, 0.080)] * 6
    forged = [TimedBlock(4, 0.076), TimedBlock(8, 0.080)] * 6
    assert Timings({"eager": eager, "candidate": forged}, [0.0]).speedup("eager").median < 1.0


def test_speedup_is_the_median_of_the_ratios_within_phases() -> None:
    eager = [TimedBlock(1, t) for t in (0.010, 0.020, 0.030)]
    candidate = [TimedBlock(1, t) for t in (0.005, 0.010, 0.015)]
    speedup = Timings({"candidate": candidate, "eager": eager}, [0.0]).speedup("eager")
    assert (speedup.low, speedup.median, speedup.high) == pytest.approx((2.0, 2.0, 2.0), rel=0.05)


def test_the_interval_covers_the_median_about_as_often_as_it_says() -> None:
    import numpy as np

    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        found = interval(generator.lognormal(0.0, 0.1, 12))
        covered += found.low <= 1.0 <= found.high
    assert covered / 300 >= 0.90


def test_the_fastest_baseline_is_the_one_with_the_least_time() -> None:
    times = {"candidate": 1.0, "eager": 3.0, "compile": 2.0}
    timings = Timings({name: [TimedBlock(1, t)] * 3 for name, t in times.items()}, [0.0])
    assert timings.fastest_baseline() == "compile"


def test_work_done_twice_shows_as_half_the_speed(evaluate: Evaluate) -> None:
    twice = variant(RETURN, "self.norm(x).sum(); y = torch.nn.functional.gelu(self.norm(x))\n"
                            "        return torch.nn.functional.gelu(self.norm(x))")  # fmt: skip
    evaluation = evaluate(twice)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    assert evaluation.speedup.eager.median < 0.8


def test_a_patched_clock_in_the_candidate_changes_nothing(evaluate: Evaluate) -> None:
    forged = "import time\ntime.perf_counter = time.time = time.monotonic = lambda: 0.0\n"
    slow = variant(RETURN, "for _ in range(4): self.norm(x)\n        " + RETURN)
    evaluation = evaluate(forged + slow)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    assert evaluation.speedup.eager.median < 0.8


def test_the_compiled_baselines_work_behind_the_fence(evaluator: Evaluator) -> None:
    honest = candidate_of(variant("Model", "Model"))
    evaluation = evaluator.evaluate(task_of(REFERENCE), honest, ALL_BASELINES)
    assert evaluation.timing is not None and evaluation.speedup is not None
    assert evaluation.timing.failed_baselines == {}
    assert evaluation.timing.compile_us is not None and evaluation.timing.max_autotune_us is not None
    assert evaluation.timing.compile_s.keys() == {"compile", "max-autotune"}
    assert evaluation.speedup.compile is not None and evaluation.speedup.max_autotune is not None
    assert evaluation.speedup.fastest is not None


def test_faster_than_memory_allows_is_implausible(
    evaluator: Evaluator, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate("x = 1", REFERENCE)
    session = evaluator._session
    assert session is not None
    real = session.target
    slow = {"copy_bytes_s": 1e6, "cached_copy_bytes_s": 1e6, "fp32_flops_s": 1e9}
    session.target = real.model_copy(update={"ceilings": real.ceilings.model_copy(update=slow)})
    monkeypatch.setattr(evaluator, "measure_again", lambda: session.target)
    try:
        evaluation = evaluate(variant("Model", "Model"))
    finally:
        session.target = real
    assert evaluation.verdict is Verdict.implausible, evaluation.reason
    assert evaluation.speedup is None and evaluation.timing is not None
