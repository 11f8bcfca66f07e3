"""Every stop has its reason, and none comes by noise."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search import (
    Beam,
    BestOfN,
    Evolve,
    Exhaustive,
    Refine,
    Request,
    Stop,
    StopRules,
    best_of,
    rounds_of,
    wrong_ceiling,
)
from kernelwright.kernelbench.records import (
    Advice,
    Candidate,
    Correctness,
    Environment,
    Evaluation,
    Interval,
    Size,
    SizeResult,
    Speedup,
    Stages,
    Task,
    Timing,
    Verdict,
)
from kernelwright.profiling.records import Profile
from tests.helpers.anywhere import TARGET
from tests.helpers.attempts import predicted


def timed(us: float, light: float | None) -> Timing:
    exact = Interval(median=us, low=us, high=us)
    floor = light * us if light is not None else None
    return Timing(candidate_us=exact, floor_us=floor, calls_per_block=1, rounds=1)


def attempt(speedup: float, spread: float = 0.02, light: float | None = None, wrong: bool = False) -> Attempt:
    """A candidate `speedup` times as fast as eager, which takes 100 µs, at this share of the speed of light."""
    candidate = Candidate(source=f"{speedup} {spread} {wrong}", language="cpp", author="test")
    found = Interval(median=speedup, low=speedup * (1 - spread), high=speedup * (1 + spread))
    evaluation = Evaluation(
        task="t",
        candidate=candidate.sha256,
        target=TARGET,
        verdict=Verdict.wrong_output if wrong else Verdict.correct,
        reason="",
        timing=None if wrong else timed(100 / speedup, light),
        speedup=None if wrong else Speedup(eager=found),
        stages=Stages(),
        environment=Environment(sandbox=()),
    )
    profile = Profile(metrics=(), bottleneck="memory", speed_of_light=light)
    return Attempt(candidate, evaluation, None if wrong else profile)


def test_rounds_are_counted_whatever_came_of_them() -> None:
    rules = StopRules(rounds=2)
    assert rules.reached([]) is None
    assert rules.reached([attempt(1.0, wrong=True)]) is None
    assert rules.reached([attempt(1.0), attempt(1.1, wrong=True)]) == "2 rounds"


def test_a_target_is_reached_by_the_lower_bound() -> None:
    rules = StopRules(rounds=9, target_speedup=2.0)
    assert rules.reached([attempt(2.1, spread=0.1)]) is None
    assert (
        rules.reached([attempt(2.1, spread=0.02)]) == "at least 2.06 times as fast as eager, 2 was asked for"
    )


def test_near_the_roofline_there_is_nothing_left_to_gain() -> None:
    rules = StopRules(rounds=9)
    assert rules.reached([attempt(3.0, light=0.94)]) is None
    assert rules.reached([attempt(3.0, light=0.96)]) == "96% of what the roofline allows"
    assert rules.reached([attempt(3.0, light=1.04)]) == "100% of what the roofline allows"
    assert rules.reached([attempt(3.0, light=0.9), attempt(2.0, light=0.99)]) is None  # not the best one


def test_near_the_roofline_of_all_sizes_together_there_is_nothing_left_to_gain() -> None:
    found = attempt(3.0, light=0.96)
    rows = Size(constants={"rows": "7"})
    slow = SizeResult(size=rows, verdict=Verdict.correct, reason="", timing=timed(50.0, 0.5))
    several = replace(found, evaluation=found.evaluation.model_copy(update={"sizes": (slow,)}))
    assert StopRules(rounds=9).reached([several]) == "96% of what the roofline allows"


def test_a_target_score_is_reached_at_the_lower_bound_of_the_speedup() -> None:
    """Eager takes 100 µs, the kernel 25 and the floor 20: 80 / 85 = 0.94, and 80 / 85.51 = 0.936 at 3.92."""
    near = attempt(4.0, light=0.8)
    assert StopRules(rounds=9, target_score=0.93).reached([near]) == (
        "a speed-of-light score of at least 0.94, 0.93 was asked for: at most 1.25 times faster is left"
    )
    assert StopRules(rounds=9, target_score=0.94).reached([near]) is None
    assert StopRules(rounds=9).reached([near]) is None  # off unless it is asked for
    assert StopRules(rounds=9, target_score=0.6).reached([attempt(4.0, light=0.8, spread=0.8)]) is None
    worse = attempt(2.0, light=0.4)  # 80 / 110, and it is not the best
    assert StopRules(rounds=9, target_score=0.93).reached([near, worse]) is not None
    assert StopRules(rounds=9, target_score=0.93).reached([worse]) is None


@pytest.mark.parametrize("light", [None, 1.2])
def test_no_score_ends_a_search_where_the_floor_is_not_known_or_wrong(light: float | None) -> None:
    assert StopRules(rounds=9, target_score=0.01).reached([attempt(4.0, light=light)]) is None


def test_a_ceiling_that_a_kernel_passes_ends_no_search_and_is_said_to_be_wrong() -> None:
    """As where a product in bf16 is held against the peak of fp32."""
    found = attempt(3.0, light=12.7)
    assert found.profile is not None
    of_products = found.profile.model_copy(update={"bottleneck": "compute", "ceiling": "bf16 products"})
    history = [replace(found, profile=of_products)]
    assert StopRules(rounds=9).reached(history) is None
    assert wrong_ceiling(history) == (
        "12.70 times faster than the roofline's floor: the ceiling of bf16 products is wrong: the peak was measured "
        "too low, or it computes less or in a faster precision"
    )
    assert wrong_ceiling([attempt(3.0, light=1.04)]) is None and wrong_ceiling([]) is None


def test_patience_ends_without_a_gain_beyond_noise() -> None:
    rules = StopRules(rounds=9, patience=2)
    first = attempt(2.0)
    noise = attempt(2.03)  # its interval begins below 2.0
    gain = attempt(2.2)
    assert rules.reached([first, noise]) is None
    assert rules.reached([first, noise, attempt(1.0, wrong=True)]) == "no gain in 2 rounds"
    assert rules.reached([first, noise, gain]) is None
    assert rules.reached([first, noise, gain, noise]) is None
    assert rules.reached([attempt(1.0, wrong=True), attempt(1.1, wrong=True), first]) is None


def test_the_best_is_the_one_with_the_highest_lower_bound() -> None:
    sure, hopeful = attempt(2.0, spread=0.01), attempt(2.1, spread=0.2)
    assert best_of([sure, hopeful, attempt(9.0, wrong=True)]) is sure
    assert best_of([attempt(9.0, wrong=True)]) is None


def as_seed(given: Attempt) -> Attempt:
    return replace(given, candidate=given.candidate.model_copy(update={"origin": "seed"}))


def test_a_seed_is_no_round_but_what_a_gain_is_held_against() -> None:
    rules, seed = StopRules(rounds=3, patience=2), as_seed(attempt(1.5))
    slower = [attempt(1.2), attempt(1.4)]
    assert rules.reached([seed]) is None
    assert rules.reached([seed, slower[0]]) is None
    assert rules.reached([seed, *slower]) == "no gain in 2 rounds"
    assert StopRules(rounds=2).reached([seed, *slower]) == "2 rounds"
    assert rules.reached([seed, attempt(2.0), slower[0]]) is None


def test_a_repair_belongs_to_its_round_wherever_it_stands() -> None:
    failed, other, right = attempt(1.0, wrong=True), attempt(2.0), attempt(3.0)
    mended = right.candidate.model_copy(update={"origin": "repair", "parents": (failed.candidate.sha256,)})
    repair = replace(right, candidate=mended)
    rounds = rounds_of([as_seed(attempt(0.5)), failed, other, repair])
    assert rounds.last == [repair, other] and [each.began for each in rounds.rounds] == [1, 2]
    assert rounds.first(1).last == [repair] and rounds.first(1).attempts == 2


TASK = Task(id="t", level=1, source="")


class Judge:
    """Counts what it is asked; its advice says on what, and as which."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        raise AssertionError("one piece of advice is not enough")

    def advise_on(
        self, task: Task, history: Sequence[Attempt], attempt: Attempt, besides: Sequence[Advice]
    ) -> Advice:
        method = f"{attempt.candidate.source} {len(besides)}"
        self.asked.append(method)
        return Advice(bottleneck="b", method=method, plan="p", predicted_gain=1.1,
                      about=attempt.candidate.sha256)  # fmt: skip


def requests(step: Sequence[Request] | Stop, seen: int = 0) -> list[tuple[str, int]]:
    assert not isinstance(step, Stop), step
    assert {request.seen for request in step} == {seen}
    return [(request.advice.method if request.advice else "", request.sample) for request in step]


def test_best_of_n_asks_for_all_at_once_and_after_a_kill_for_the_rest() -> None:
    search = BestOfN(StopRules(rounds=3))
    assert requests(search.step(TASK, [])) == [("", 0), ("", 1), ("", 2)]
    assert requests(search.step(TASK, [attempt(1.0)])) == [("", 1), ("", 2)]
    assert search.step(TASK, [attempt(1.0)] * 3) == Stop("3 candidates")


def test_a_beam_goes_on_from_the_best_with_several_pieces_of_advice_each() -> None:
    beam = Beam(Judge(), StopRules(rounds=20), width=2, advices=2)
    assert requests(beam.step(TASK, [])) == [("", 0), ("", 1)]
    first = [attempt(1.0), attempt(2.0)]
    low, high = (a.candidate.source for a in first)
    second = requests(beam.step(TASK, first), seen=2)
    assert second == [(f"{high} 0", 2), (f"{high} 1", 3), (f"{low} 0", 4), (f"{low} 1", 5)]
    best = attempt(4.0)
    history = [*first, attempt(0.5), best, attempt(0.7), attempt(1.5, wrong=True)]
    third = requests(beam.step(TASK, history), seen=6)
    assert [method for method, _ in third] == [
        f"{a.candidate.source} {i}" for a in (best, first[1]) for i in (0, 1)
    ]


def test_a_beam_that_was_killed_goes_on_with_the_requests_that_are_left() -> None:
    beam = Beam(Judge(), StopRules(rounds=20), width=2, advices=2)
    first = [attempt(1.0), attempt(2.0)]
    whole = requests(beam.step(TASK, first), seen=2)
    better = attempt(9.0)  # is no parent before its generation is over
    assert requests(beam.step(TASK, [*first, better]), seen=2) == whole[1:]
    assert requests(beam.step(TASK, [*first, better, attempt(0.1), attempt(0.2)]), seen=2) == whole[3:]


def test_while_nothing_is_correct_a_beam_corrects_the_last_few() -> None:
    beam = Beam(Judge(), StopRules(rounds=20), width=2, advices=3)
    first = [attempt(1.0, wrong=True), attempt(2.0, wrong=True)]
    assert requests(beam.step(TASK, first), seen=2) == [
        (f"{a.candidate.source} 0", n) for n, a in ((2, first[1]), (3, first[0]))
    ]


def test_a_beam_does_not_ask_for_more_than_there_are_rounds() -> None:
    beam = Beam(Judge(), StopRules(rounds=3), width=2, advices=2)
    history = [attempt(1.0), attempt(2.0)]
    assert len(requests(beam.step(TASK, history), seen=2)) == 1
    assert beam.step(TASK, [*history, attempt(3.0)]) == Stop("3 rounds")
    one = Beam(Judge(), StopRules(rounds=1), width=2)
    assert len(requests(one.step(TASK, []))) == 1


def test_a_beam_of_one_file_has_one_parent() -> None:
    beam = Beam(Judge(), StopRules(rounds=20), width=2, advices=2)
    same = attempt(1.0)
    assert len(requests(beam.step(TASK, [same, same]), seen=2)) == 2


def test_refining_from_the_latest_takes_the_last_one_whatever_it_is() -> None:
    history = [attempt(3.0), attempt(1.0), attempt(2.0, wrong=True)]
    search = Refine(Judge(), StopRules(rounds=9), from_latest=True)
    assert requests(search.step(TASK, history), seen=3) == [(f"{history[-1].candidate.source} 0", 3)]


def by(author: str, language: str, speedup: float, wrong: bool = False) -> Attempt:
    """A candidate of this coder."""
    made = attempt(speedup, wrong=wrong)
    update = {"author": author, "language": language, "source": f"{author} {language} {speedup}"}
    return Attempt(made.candidate.model_copy(update=update), made.evaluation, made.profile, made.advice)


class Rules:
    """Has a move for any history."""

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        assert all(attempt.candidate.author == "builtin" for attempt in history)
        return Advice(bottleneck="b", method="next schedule", plan="p", predicted_gain=1.1)


def evolution(rounds: int = 99, islands: int = 2) -> Evolve:
    return Evolve(Judge(), Rules(), StopRules(rounds=rounds), ("builtin", "cuda", "triton"), islands)


def asked(step: Sequence[Request] | Stop) -> list[Request]:
    assert not isinstance(step, Stop), step
    return list(step)


def test_islands_begin_with_every_coder_there_is() -> None:
    assert [request.coder for request in asked(evolution(islands=4).step(TASK, []))] == [
        "builtin", "triton", "cuda", "triton"
    ]  # fmt: skip


def test_an_island_goes_on_from_its_own_archive_in_which_slower_coders_survive() -> None:
    """Over many generations, each island is asked for candidates made from what is in its archive only."""
    fast, slow, elsewhere = by("llm", "cuda", 3.0), by("llm", "triton", 2.0), by("llm", "cuda", 9.0)
    beaten = by("llm", "cuda", 1.0)
    parents: dict[int, set[str]] = {0: set(), 1: set()}
    history = [fast, elsewhere, slow, elsewhere, beaten, elsewhere]
    for extra in range(40):  # the same again changes the archive in nothing, but the dice are thrown again
        history += [beaten, elsewhere]
        step = asked(evolution().step(TASK, history))
        if (len(history) // 2) % 3 == 0:
            continue  # there is a guest
        for island, request in enumerate(step):
            assert request.advice is not None and request.seen == len(history), extra
            parents[island].add(request.advice.about)
    assert parents == {
        0: {fast.candidate.sha256, slow.candidate.sha256},
        1: {elsewhere.candidate.sha256},
    }


def test_the_best_of_the_next_island_comes_to_visit() -> None:
    own, guest = by("llm", "cuda", 2.0), by("llm", "cuda", 9.0)
    first, _ = asked(evolution().step(TASK, [own, guest] * 3))
    assert first.advice is not None and first.advice.about == guest.candidate.sha256


def test_a_builtin_kernel_is_moved_on_by_rules_or_rewritten_by_a_model() -> None:
    found = set()
    for number in range(20):
        history = [by("builtin", "cpp", 2.0 + number / 100)] * 2 * (number + 1)
        for island, request in enumerate(asked(evolution().step(TASK, history))):
            assert request.advice is not None
            found.add((island, request.coder, request.advice.method == "next schedule"))
    # Not on two islands at a time: it would be the same move.
    assert found == {
        (0, "builtin", True), *((i, language, False) for i in (0, 1) for language in ("cuda", "triton"))
    }  # fmt: skip


def test_evolution_goes_on_after_a_kill_as_it_would_have_done() -> None:
    history = [by("llm", "cuda", 1.0 + n / 10) for n in range(6)]
    whole = asked(evolution(islands=3).step(TASK, history))
    left = asked(evolution(islands=3).step(TASK, [*history, by("llm", "cuda", 9.0)]))
    assert left == whole[1:] and len(whole) == 3
    assert isinstance(evolution(rounds=6, islands=3).step(TASK, history), Stop)


def test_an_island_without_a_correct_kernel_mends_its_last() -> None:
    history = [by("llm", "cuda", 1.0, wrong=True), by("llm", "triton", 2.0, wrong=True)]
    advised = [request.advice for request in asked(evolution().step(TASK, history))]
    assert [advice.about if advice else "" for advice in advised] == [a.candidate.sha256 for a in history]


def test_values_that_come_to_the_same_code_are_not_tried() -> None:
    search, first = Exhaustive(StopRules(rounds=99), hold={"threads"}), scheduled([], **{"k0.block": "64"})
    among = first.candidate.model_copy(update={"alternatives": {"k0.block": ("64", "128")}})
    history = [replace(first, candidate=among)]
    while not isinstance(step := search.step(TASK, history), Stop):
        (request,) = step
        assert request.advice is not None
        history.append(replace(scheduled(history, **request.advice.schedule), advice=request.advice))
        history[-1] = replace(
            history[-1],
            candidate=history[-1].candidate.model_copy(update={"alternatives": among.alternatives}),
        )
    assert [a.candidate.schedule["k0.block"] for a in history] == ["64", "128"]


def test_what_cannot_be_timed_here_is_not_corrected() -> None:
    right = attempt(1.0)
    evaluation = right.evaluation.model_copy(update={"verdict": Verdict.unmeasured, "speedup": None})
    numbers = Correctness(inputs_tried=7, error=0.1, reference_error=None, worst_input="task")
    checked = evaluation.model_copy(update={"correctness": numbers})
    triton = Attempt(right.candidate.model_copy(update={"language": "triton"}), checked, None)
    assert "need a GPU" in (StopRules(rounds=9).reached([triton]) or "")
    assert (
        StopRules(rounds=9).reached([replace(triton, evaluation=evaluation)]) is None
    )  # its kernels never ran


def test_schedules_with_predicted_times_are_tried_without_a_gpu() -> None:
    made = Candidate(source="", language="triton", author="builtin", schedule={"k0.warps": "8"})
    history = [predicted(made, time_us) for time_us in (90.0, 60.0, 70.0)]
    assert StopRules(rounds=9).reached(history) is None
    assert StopRules(rounds=9, patience=1).reached(history[:2]) is None
    assert StopRules(rounds=9, patience=1).reached(history) == "no gain in 1 rounds"
    by_a_model = made.model_copy(update={"schedule": {}, "author": "llm"})
    assert "need a GPU" in (StopRules(rounds=9).reached([predicted(by_a_model, 90.0)]) or "")


def scheduled(history: Sequence[Attempt], **schedule: str) -> Attempt:
    found = attempt(1.0 + len(history))
    return replace(found, candidate=found.candidate.model_copy(update={"schedule": schedule}))


def test_every_schedule_is_tried_once() -> None:
    search, history = Exhaustive(StopRules(rounds=99)), list[Attempt]()
    while not isinstance(step := search.step(TASK, history), Stop):
        (request,) = step
        asked = request.advice.schedule if request.advice else {"vector": "512", "unroll": "off"}
        found = scheduled(history, **{"k0.threads": "all"} | asked)
        history.append(replace(found, advice=request.advice))
    assert step.reason == "every schedule has been tried"
    held = Exhaustive(StopRules(rounds=99), hold={"vector", "threads"})
    step = held.step(TASK, history[:1])
    assert isinstance(step, list) and step[0].advice and step[0].advice.schedule["unroll"] == "on"
    assert held.step(TASK, [*history[:1], replace(history[1], advice=step[0].advice)]) == Stop(
        "every schedule has been tried"
    )
    tried = [tuple(sorted(a.candidate.schedule.items())) for a in history]
    assert len(set(tried)) == len(tried) == 8
    assert search.step(TASK, history[:5]) == search.step(TASK, history[:5])
    assert Exhaustive(StopRules(rounds=3)).step(TASK, history[:3]) == Stop("3 rounds")


def test_what_is_advised_on_is_known_before() -> None:
    """Every search that asks a judge names the attempts, without failures, that it passes on."""
    parents = [attempt(1.0), attempt(2.0), attempt(4.0), attempt(0.9, wrong=True)]
    later = [*parents, attempt(5.0), attempt(0.5)]
    rules = StopRules(rounds=20)
    for history in (parents, later):
        for make in (
            lambda judge: Beam(judge, rules, width=2, advices=2),
            lambda judge: Evolve(judge, judge, rules, ("cpp",), islands=2),
            lambda judge: Refine(judge, rules, from_latest=True),
        ):
            judge = Judge()
            search = make(judge)
            expected = {each.candidate.source for each in search.advised_on(TASK, history)}
            search.step(TASK, history)
            asked = {said.rpartition(" ")[0] for said in judge.asked}
            right = {each.candidate.source for each in history if each.evaluation.verdict is Verdict.correct}
            assert expected == asked & right, type(search)
    refine = Refine(Judge(), rules)
    assert refine.advised_on(TASK, []) == () and refine.advised_on(TASK, [parents[-1]]) == []
    [best] = refine.advised_on(TASK, parents)
    assert best is parents[2]


def test_nothing_is_advised_on_where_no_judge_is_asked_or_no_round_is_left() -> None:
    history = [attempt(1.0), attempt(2.0)]
    rules = StopRules(rounds=2)
    for search in (
        BestOfN(StopRules(rounds=9)),
        Exhaustive(StopRules(rounds=9)),
        Refine(Judge(), rules),
        Beam(Judge(), rules),
        Evolve(Judge(), Judge(), rules, ("cpp",)),
    ):
        assert not search.advised_on(TASK, history), type(search)
