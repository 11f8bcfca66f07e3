"""A surrogate learns what schedules come to from other tasks, and guesses nothing where it knows too little."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.advise import RulesJudge
from kernelwright.agent.tuner.memory import RecordedRanking
from kernelwright.agent.tuner.random_forest import LEAST, Surrogate, examples, features
from kernelwright.kernelbench.records import Candidate, Task, Verdict
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Profile
from tests.helpers.attempts import attempt
from tests.helpers.installed import require

require("sklearn", reason="scikit-learn is not installed")

FIRST = {"vector": "512", "unroll": "off", "k0.block": "4096", "k0.streaming": "off", "k0.prefetch": "on"}
BLOCKS = ("256", "1024", "4096")


def task(number: int, function: str = "exp") -> Task:
    return Task(id=f"t{number}", level=1, source=f"# {number}\nx = torch.{function}(y)")


def made(schedule: dict[str, str], time_us: float, size: float) -> Attempt:
    candidate = Candidate(source=str(schedule), language="cpp", author="builtin", schedule=schedule)
    metrics = (metric("minimal_bytes", size), metric("flops", 0.0), metric("spills", 0, "k"))
    profile = Profile(metrics=metrics, bottleneck="memory", speed_of_light=0.5)
    return replace(attempt(candidate, time_us), profile=profile)


def measured(size: float) -> list[Attempt]:
    """Streaming pays for large tasks alone, blocks should be small, and prefetching does not matter."""

    def time_us(schedule: dict[str, str]) -> float:
        streaming = (0.7 if size > 1e7 else 1.3) if schedule["k0.streaming"] == "on" else 1.0
        return size / 1e4 * streaming * (1 + 0.1 * BLOCKS.index(schedule["k0.block"]))

    def schedules() -> Iterator[dict[str, str]]:
        yield FIRST
        for block in BLOCKS:
            for streaming in ("off", "on"):
                for prefetch in ("on", "off"):
                    changed = {"k0.block": block, "k0.streaming": streaming, "k0.prefetch": prefetch}
                    yield {**FIRST, **changed}

    return [made(schedule, time_us(schedule), size) for schedule in schedules()]


def surrogate() -> Surrogate:
    sizes = (1e6, 2e6, 4e7, 8e7)
    return Surrogate([e for number, size in enumerate(sizes) for e in examples(task(number), measured(size))])


@pytest.mark.parametrize(("size", "knob"), [(1.5e6, "k0.block"), (6e7, "k0.streaming")])
def test_the_move_that_paid_in_tasks_like_this_one_comes_first(size: float, knob: str) -> None:
    history = measured(size)[:1]
    advice = RulesJudge(ranking=surrogate()).advise(task(9), history)
    assert advice is not None and 1.05 < advice.predicted_gain < 1.5
    [(moved, value)] = advice.schedule.items()
    assert moved == knob and value in ("on", "64", "128", "256")  # smaller blocks than there were look alike


def test_gains_are_of_the_best_so_far() -> None:
    history = measured(6e7)[:1]
    found = surrogate().gains(
        task(9), history, {**FIRST, "k0.streaming": "on"}, [{**FIRST, "k0.streaming": "on"}, FIRST]
    )
    assert found[0] == 1.0 and found[1] == pytest.approx(0.7, abs=0.1)


def test_with_too_few_examples_rules_go_on_alone() -> None:
    few = Surrogate(examples(task(0), measured(1e6))[: LEAST - 1])
    history = measured(1e6)[:1]
    assert few.gains(task(9), history, FIRST, [FIRST]) == []
    for number in range(5):
        advice = RulesJudge(ranking=few).advise(task(9), history)
        assert advice is not None and advice == RulesJudge().advise(task(9), history)
        schedule = {**history[-1].candidate.schedule, **advice.schedule}
        history.append(made(schedule, 99.0 - number, 1e6))


def test_other_languages_teach_nothing() -> None:
    assert examples(task(0), measured(1e6), "triton") == []


def test_what_teaches_nothing_is_left_out() -> None:
    right = measured(1e6)
    wrong = replace(
        right[1], evaluation=right[1].evaluation.model_copy(update={"verdict": Verdict.wrong_output})
    )
    reference = made({"kernels": "none"}, 100.0, 1e6)
    assert len(examples(task(0), [right[0], wrong, reference, right[2]])) == 2
    assert examples(task(0), [wrong, *right]) == [] == examples(task(0), [])
    assert examples(task(0), right)[0].slowness == 0.0


def test_features_know_every_knob_and_family() -> None:
    first = measured(1e6)[0]
    other = features(task(0, "softmax"), first, {**FIRST, "k1.block": "64"})
    same = features(task(0), first, FIRST)
    assert len(other) == len(same)
    assert sum(a != b for a, b in zip(other, same, strict=True)) == 3  # the blocks' mean, and two families


class Told:
    """A memory, without its database."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], tuple[str, ...]] = {}

    def told(self, task: Task, key: str, lines: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        if (task.id, key) not in self.known:
            self.known[task.id, key] = lines()
        return self.known[task.id, key]


def test_a_run_that_goes_on_is_told_the_same_whatever_is_known_by_then() -> None:
    memory, history = Told(), measured(6e7)[:1]
    asked = task(9), history, FIRST, [{**FIRST, "k0.streaming": "on"}]
    first = RecordedRanking(memory, surrogate()).gains(*asked)  # type: ignore[arg-type]
    assert first == surrogate().gains(*asked) != []
    assert RecordedRanking(memory, Surrogate(())).gains(*asked) == first  # type: ignore[arg-type]
