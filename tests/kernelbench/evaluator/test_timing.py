"""The referee's clock: what it makes of block times, and of real candidates that are faster, slower or forged."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kernelwright.kernelbench.evaluator import EAGER, Effort, Measurement, Referee
from kernelwright.kernelbench.evaluator import trial as evaluation_module
from kernelwright.kernelbench.evaluator.block import Block
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.evaluator.sandbox.process_tree import cpu_ns, tree
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.evaluator.timing.statistics import TimedBlock, Timings, interval
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, Evaluate, candidate_of, task_of, variant

pytestmark = pytest.mark.timed

RETURN = "return torch.nn.functional.gelu(self.norm(x))"


def test_what_a_block_costs_once_does_not_count() -> None:
    short, long = TimedBlock(4, 0.005 + 4 * 0.01), TimedBlock(8, 0.005 + 8 * 0.01)
    assert short.call_s(0.005) == pytest.approx(0.01)
    assert long.call_s(0.005) == pytest.approx(0.01)


def test_a_block_shorter_than_an_empty_one_still_took_time() -> None:
    assert TimedBlock(4, 0.004).call_s(0.005) == pytest.approx(0.00025)


def timings_of(blocks: dict[str, list[TimedBlock]], processes: list[int] | None = None) -> Timings:
    return Timings(blocks, [0.0], processes or [0] * len(blocks["candidate"]))


def test_being_slow_in_short_blocks_on_purpose_does_not_pay() -> None:
    """The slope of these two blocks would be a tenth of what a call takes."""
    eager = [TimedBlock(4, 0.040), TimedBlock(8, 0.080)] * 6
    forged = [TimedBlock(4, 0.076), TimedBlock(8, 0.080)] * 6
    assert timings_of({"eager": eager, "candidate": forged}).speedup("eager").median < 1.0


def test_speedup_is_the_median_of_the_ratios_within_phases() -> None:
    eager = [TimedBlock(1, t) for t in (0.010, 0.020, 0.030)]
    candidate = [TimedBlock(1, t) for t in (0.005, 0.010, 0.015)]
    speedup = timings_of({"candidate": candidate, "eager": eager}).speedup("eager")
    assert (speedup.low, speedup.median, speedup.high) == pytest.approx((2.0, 2.0, 2.0), rel=0.05)


@pytest.mark.parametrize("ratio", [1.0, 1.2, 2.0, 10.0])
@pytest.mark.parametrize("call_s", [5e-6, 3e-5, 2e-4, 5e-3])
@pytest.mark.parametrize("fixed_s", [0.0, 2e-4, 2e-3])
def test_on_a_gpu_a_block_s_cost_is_found_though_an_empty_one_costs_less(
    fixed_s: float, call_s: float, ratio: float
) -> None:
    """Simulate blocks as a session makes them, 50 ms or 1024 calls of eager, with noise of 1%."""
    generator = np.random.default_rng(3)
    calls = max(1, min(1024, int(0.05 / (ratio * call_s))))

    def block(count: int, each_s: float) -> TimedBlock:
        work_s = count * each_s * generator.normal(1, 0.01)
        both_s = (
            0.5 * fixed_s + work_s
        )  # half of the cost is before the first launch: the device's clock runs
        return TimedBlock(count, 0.5 * fixed_s * generator.normal(1, 0.02) + both_s, device_s=both_s)

    both = [calls, 2 * calls] * 12
    blocks = {
        "eager": [block(count, ratio * call_s) for count in both],
        "candidate": [block(count, call_s) for count in both],
    }
    timings = Timings(blocks, [0.5 * fixed_s], [0] * len(both))
    assert timings.speedup("eager").median == pytest.approx(ratio, rel=0.01 if ratio == 1.0 else 0.03)


@pytest.mark.parametrize("between", [0.0, 0.01, 0.03])
def test_the_interval_covers_the_median_about_as_often_as_it_says(between: float) -> None:
    """With noise within processes of 0.01, and with what differs from one to the next."""
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        groups = np.exp(generator.normal(0, between, (6, 1)) + generator.normal(0, 0.01, (6, 4)))
        found = interval(groups.tolist())
        covered += found.low <= 1.0 <= found.high
    assert covered / 200 >= 0.88


def test_processes_that_differ_widen_the_interval_of_one_that_does_not() -> None:
    """The same 24 values, once as one process and once as six that differ."""
    values = np.repeat([0.97, 0.98, 0.99, 1.01, 1.02, 1.03], 4)
    one, six = interval([values.tolist()]), interval(values.reshape(6, 4).tolist())
    assert one.median == six.median
    assert six.high - six.low > 1.2 * (one.high - one.low)


def test_processes_may_have_unequal_numbers_of_phases() -> None:
    found = interval([[1.0, 1.0, 1.0], [1.0], [1.0, 1.0]])
    assert (found.low, found.median, found.high) == (1.0, 1.0, 1.0)


def test_blocks_that_waited_for_a_cpu_are_left_out() -> None:
    calm = [TimedBlock(1, 0.010, waited_s=0.0003)] * 12
    quiet = [TimedBlock(1, 0.010, waited_s=0.0003)] * 2
    timings = timings_of({"candidate": calm, "eager": [TimedBlock(1, 0.012, waited_s=0.0023), *quiet] * 4})
    assert timings.undisturbed("candidate", "eager") == [1, 2, 4, 5, 7, 8, 10, 11]
    assert timings.speedup("eager").high == pytest.approx(1.0)


def test_a_worker_that_always_waits_is_timed_all_the_same() -> None:
    """As one with more threads than CPUs does."""
    crowded = [TimedBlock(1, 0.010 + t, waited_s=0.006 + t) for t in (0, 0.001, 0.002, 0.003)] * 3
    calm = [TimedBlock(1, 0.010)] * 12
    timings = timings_of({"candidate": crowded, "eager": calm})
    assert 6 <= len(timings.undisturbed("candidate", "eager")) <= 12
    assert timings.speedup("eager").median == pytest.approx(1 / 1.15, rel=0.05)


def test_the_fastest_baseline_is_the_one_that_the_candidate_is_least_ahead_of() -> None:
    times = {"candidate": [1.0, 1.0, 4.0], "eager": [2.0, 2.0, 8.0], "compile": [3.0, 1.5, 6.0]}
    times["traffic"] = [0.5, 0.5, 0.5]  # no rival
    timings = timings_of({name: [TimedBlock(1, t) for t in each] for name, each in times.items()})
    assert timings.time_us("eager").median < timings.time_us("compile").median
    assert timings.fastest_baseline() == "compile"
    assert timings.speedup("compile").median < timings.speedup("eager").median


def test_rounds_are_spread_over_processes_of_candidate_and_eager(
    evaluator: Referee, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(variant("Model", "Model"))
    session = evaluator.sessions._session
    assert session is not None
    pids: set[int] = set()
    run = session.run

    def noted(worker: Worker, *arguments: Any, **options: Any) -> Block:
        pids.add(worker.init_pid)
        return run(worker, *arguments, **options)

    monkeypatch.setattr(session, "run", noted)
    effort = Effort(rounds=2, processes=2, most_processes=3, half_width=0.0)  # which no interval reaches
    evaluation = evaluator.evaluate(
        task_of(REFERENCE), candidate_of(variant("Model", "Model")), Measurement(("eager",), effort)
    )
    assert evaluation.verdict is Verdict.correct and evaluation.timing is not None
    assert evaluation.timing.processes == evaluation.timing.rounds == 3
    assert 0 <= evaluation.timing.disturbed <= 3  # half of the phases at most
    assert len(pids) == 2 * evaluation.timing.processes


@pytest.mark.parametrize(("to_beat", "processes"), [(0.0, 1), (0.01, 1), (100.0, 1), (None, 3)])
def test_no_more_is_timed_than_shows_which_of_two_is_faster(
    evaluator: Referee, to_beat: float | None, processes: int
) -> None:
    """A kernel that is as fast as eager, against one that is far slower, or far faster."""
    effort = Effort(rounds=2, processes=1, most_processes=3, half_width=0.0)  # which no interval reaches
    honest = candidate_of(variant("Model", "Model"))
    timing = evaluator.evaluate(task_of(REFERENCE), honest, Measurement(("eager",), effort, to_beat)).timing
    assert timing is not None and timing.processes == processes


@pytest.mark.parametrize(("to_beat", "rounds"), [(None, 5), (0.01, 3), (100.0, 3)])
def test_rounds_go_on_while_it_is_not_clear(evaluator: Referee, to_beat: float | None, rounds: int) -> None:
    """In one process, in blocks of half the calls."""
    effort = Effort(rounds=3, processes=1, most_processes=1, most_rounds=5, half_width=0.0, block_share=0.5)
    honest = candidate_of(variant("Model", "Model"))
    timing = evaluator.evaluate(task_of(REFERENCE), honest, Measurement(("eager",), effort, to_beat)).timing
    assert timing is not None and (timing.rounds, timing.processes) == (rounds, 1)
    session = evaluator.sessions._session
    assert session is not None
    assert timing.calls_per_block == max(1, round(session.calls / 2))


def test_outputs_of_each_block_lie_elsewhere(evaluator: Referee, evaluate: Evaluate) -> None:
    evaluate(variant("Model", "Model"))
    session = evaluator.sessions._session
    assert session is not None
    worker, places = session.baseline("eager"), []
    assert worker is not None
    for _ in range(20):
        session.prepare(worker, 1)
        places.append(session.run(worker, [0], session.oracle.call_seeds(1)).outputs[0][0].address % 4096)
    assert len(set(places)) >= 3


@pytest.fixture(scope="module")
def served(evaluator: Referee) -> Iterator[Evaluate]:
    """evaluate(candidate source) with calls that come one by one."""
    protocol = evaluator.sessions.protocol.model_copy(update={"arrivals_per_s": 100.0})
    with Referee.start(
        cache=evaluator.sessions.pool.cache, protocol=protocol, limits=evaluator.sessions.limits
    ) as made:
        yield lambda source: made.evaluate(task_of(REFERENCE), candidate_of(source), EAGER)


def test_calls_can_come_one_by_one(served: Evaluate) -> None:
    evaluation = served(variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.timing is not None and evaluation.timing.calls_per_block == 1
    assert evaluation.environment.arrivals_per_s == 100.0
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    slow = served(variant(RETURN, "for _ in range(40): self.norm(x)\n        " + RETURN))
    assert slow.speedup is not None and slow.speedup.eager is not None
    assert slow.speedup.eager.median < 0.8 * evaluation.speedup.eager.median


LAZY = """self.count = getattr(self, "count", 0) + 1
        if self.count > 40 and self.count % 4:
            return self.last
        self.last = torch.nn.functional.gelu(self.norm(x))
        return self.last"""


def test_who_computes_every_fourth_call_is_found_where_they_come_one_by_one(served: Evaluate) -> None:
    assert served(variant(RETURN, LAZY)).verdict is Verdict.cheating


def test_inputs_of_single_calls_come_to_be_just_before_them(
    served: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a candidate could count the inputs that are new, and know which call is the last."""
    happened: list[tuple[str, list[int]]] = []

    def noted(what: str, place: int, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            happened.append((what, list(arguments[place])))
            return call(*arguments, **options)

        return wrapper

    measure = evaluation_module.measure

    def watched(session: TaskSession, *arguments: Any) -> Timings:
        monkeypatch.setattr(session.oracle, "fill", noted("fill", 0, session.oracle.fill))
        monkeypatch.setattr(session, "run", noted("run", 1, session.run))
        return measure(session, *arguments)

    monkeypatch.setattr(evaluation_module, "measure", watched)
    assert served(variant("Model", "Model")).verdict is Verdict.correct
    first = next(place for place, (what, _) in enumerate(happened) if what == "fill")
    filled: list[int] = []
    timed = 0
    for what, slots in happened[first:]:
        if what == "fill":
            filled = slots
        elif len(slots) == 1 and slots == filled:
            timed += 1
        assert len(filled) == 1
    assert timed >= 16


def test_work_done_twice_shows_as_half_the_speed(evaluate: Evaluate) -> None:
    twice = variant(RETURN, "self.norm(x).sum(); y = torch.nn.functional.gelu(self.norm(x))\n"
                            "        return torch.nn.functional.gelu(self.norm(x))")  # fmt: skip
    evaluation = evaluate(twice)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    assert evaluation.speedup.eager.median < 0.8


def test_a_patched_clock_in_the_candidate_changes_nothing(evaluate: Evaluate) -> None:
    forged = "import time\ntime.perf_counter = time.time = time.monotonic = lambda: 0.0\n"
    slow = variant(RETURN, "for _ in range(40): self.norm(x)\n        " + RETURN)
    evaluation = evaluate(forged + slow)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    assert evaluation.speedup.eager.median < 0.8


def test_ceilings_that_a_kernel_nearly_reaches_are_measured_again(
    evaluator: Referee, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have been measured while the machine was busy; a search would end for nothing."""
    true = evaluator.target
    low = true.ceilings.model_copy(update={"copy_bytes_s": true.ceilings.copy_bytes_s / 100})
    monkeypatch.setattr(evaluator.sessions._machine, "target", true.model_copy(update={"ceilings": low}))
    monkeypatch.setattr(evaluator.sessions._machine, "measured_again_at", None)
    evaluation = evaluate(variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct
    assert evaluation.target.ceilings.copy_bytes_s >= true.ceilings.copy_bytes_s


def test_the_oracle_stands_still_while_blocks_are_timed(evaluator: Referee) -> None:
    """After its work libgomp's threads spin for milliseconds, on the CPUs of what is timed next."""
    session = evaluator.sessions.open(task_of(REFERENCE))
    session.oracle.fill([0])
    root = session.oracle._worker.init_pid
    used_ns = cpu_ns(tree(root))
    time.sleep(0.05)
    assert cpu_ns(tree(root)) == used_ns


def test_faster_than_memory_allows_is_implausible(
    evaluator: Referee, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate("x = 1", REFERENCE)
    session = evaluator.sessions._session
    assert session is not None
    real = session.target
    slow = {"copy_bytes_s": 1e6, "cached_copy_bytes_s": 1e6, "fp32_flops_s": 1e9}
    session.target = real.model_copy(update={"ceilings": real.ceilings.model_copy(update=slow)})
    monkeypatch.setattr(evaluator.sessions, "measure_again", lambda: session.target)
    try:
        evaluation = evaluate(variant("Model", "Model"))
    finally:
        session.target = real
    assert evaluation.verdict is Verdict.implausible, evaluation.reason
    assert evaluation.speedup is None and evaluation.timing is not None
