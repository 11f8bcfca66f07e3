"""Rewards against values computed by hand."""

import math
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Interval, Speedup, Verdict
from kernelwright.rl_training.outcome import Outcome, failed
from kernelwright.rl_training.rewards.returns import discounted
from kernelwright.rl_training.rewards.reward_input import RewardInput
from kernelwright.rl_training.rewards.scheme import SCHEMES, Scheme, scheme_of
from kernelwright.rl_training.rewards.terms import (
    Correct,
    CoverageTerm,
    Deviation,
    Length,
    Milestones,
    Progress,
    SpeedupTerm,
)

SOURCE = "x" * 2000


def interval(low: float) -> Interval:
    """A median far above the lower bound, so that whoever takes it is seen."""
    return Interval(median=10 * low, low=low, high=20 * low)


def right(
    eager: float, compiled: float | None = None, share: float | None = 0.8, error: float = 0.25
) -> RewardInput:
    speedup = Speedup(eager=interval(eager), compile=interval(compiled) if compiled else None)
    return RewardInput(
        Outcome(verdict=Verdict.correct, speedup=speedup, own_kernel_share=share, error=error), SOURCE
    )


def wrong(verdict: Verdict = Verdict.wrong_output) -> RewardInput:
    return RewardInput(Outcome(verdict=verdict, error=7.0), SOURCE)


def test_correct() -> None:
    assert Correct(weight=0.3)(right(0.5)).value == 0.3
    assert Correct(weight=0.3)(wrong()).value == 0.0


@pytest.mark.parametrize(
    ("term", "low", "value"),
    [
        (SpeedupTerm(form="plain"), 2.5, 2.5),
        (SpeedupTerm(form="log"), 2.5, math.log(2.5)),
        (SpeedupTerm(form="log"), 0.5, 0.0),  # slow and right is not worse than wrong
        (SpeedupTerm(form="log", most=2.0, weight=3), 2.5, 3 * math.log(2.0)),
        (SpeedupTerm(form="clipped"), 2.5, 2.5),
        (SpeedupTerm(form="clipped"), 40.0, 3.0),
        (SpeedupTerm(form="clipped", most=5.0), 40.0, 5.0),
    ],
)
def test_speedup_is_the_lower_bound(term: SpeedupTerm, low: float, value: float) -> None:
    assert term(right(low)).value == pytest.approx(value)
    assert term(wrong()).value == 0.0


def test_speedup_over_compile_is_nothing_where_that_was_not_timed() -> None:
    term = SpeedupTerm(form="plain", baseline="compile")
    assert term(right(4.0, compiled=1.5)).value == 1.5
    assert term(right(4.0)).value == 0.0


@pytest.mark.parametrize(
    ("seen", "value"),
    [
        (wrong(), -1),
        (right(0.5, 0.5), 1),
        (right(1.05, 2.0), 1),  # faster, by less than 5% of eager's time: that is 1 / 0.95 = 1.0526
        (right(1.06, 1.0), 2),
        (right(1.06, 1.06), 3),
        (right(1.0, 1.06), 1),  # than torch.compile alone
        (right(9.0), 2),
    ],
)
def test_milestones(seen: RewardInput, value: float) -> None:
    assert Milestones()(seen).value == value


def test_coverage_deviation_and_length_are_of_what_is_right() -> None:
    assert CoverageTerm(weight=0.5)(right(2.0, share=0.8)).value == 0.4
    assert CoverageTerm()(right(2.0, share=None)).value == 0.0
    assert CoverageTerm()(right(2.0, share=None)).metrics == {"share_known": 0.0}
    assert Deviation(weight=2.0)(right(2.0, error=0.25)).value == -0.5
    assert Length(weight=0.01)(right(2.0)).value == pytest.approx(-0.02)
    for term in (CoverageTerm(), Deviation(), Length()):
        assert term(wrong()).value == 0.0


def test_progress_is_over_the_best_turn_before() -> None:
    def after(*lows: float) -> RewardInput:
        seen = right(3.0)
        return RewardInput(seen.outcome, SOURCE, (*(right(low).outcome for low in lows), wrong().outcome))

    assert Progress()(after()).value == pytest.approx(math.log(3.0))  # over eager itself
    assert Progress()(after(0.5)).value == pytest.approx(math.log(3.0))
    assert Progress()(after(2.0, 1.5)).value == pytest.approx(math.log(1.5))
    assert Progress()(after(6.0)).value == 0.0
    assert Progress()(RewardInput(wrong().outcome, SOURCE, (right(2.0).outcome,))).value == 0.0


def test_progress_is_not_over_a_decoy() -> None:
    """What torch's operators won in a turn before is not what a kernel has to beat."""
    decoy = right(2.9, share=0.01).outcome
    seen = RewardInput(right(3.0).outcome, SOURCE, (decoy, right(2.0).outcome))
    assert Scheme(terms=(Progress(),))(seen).value == pytest.approx(math.log(3.0 / 2.0))
    assert Scheme(terms=(Progress(),), decoy_share=0.0)(seen).value == pytest.approx(math.log(3.0 / 2.9))


def test_published_schemes() -> None:
    seen = right(4.0, 1.2, share=0.6)
    assert SCHEMES["kevin"](seen).value == pytest.approx(0.3 + 4.0)
    assert SCHEMES["dr-kernel"](seen).value == pytest.approx(0.5 + 0.5 * 3.0 + 0.5 * 0.6)
    assert SCHEMES["cuda-agent"](seen).value == 3.0
    assert SCHEMES["log-speedup"](seen).value == pytest.approx(0.3 + math.log(4.0))
    assert SCHEMES["cuda-agent"].baselines == ("eager", "compile")
    assert SCHEMES["kevin"].baselines == ("eager",)


UNKNOWN = {
    "infrastructure": failed("evaluator", "a worker died"),
    "no verdict in time": failed("patience", "the pool is busy"),
    "the task's own fault": failed("task", "get_inputs raises"),
    "no GPU here": Outcome(verdict=Verdict.unmeasured, reason="right in emulation"),
    "never timed": Outcome(verdict=Verdict.correct),
}


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("case", UNKNOWN)
def test_where_nothing_is_known_of_the_candidate_there_is_no_reward(name: str, case: str) -> None:
    assert SCHEMES[name](RewardInput(UNKNOWN[case], SOURCE)).value is None


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("verdict", [Verdict.cheating, Verdict.implausible, Verdict.nondeterministic])
def test_hacks_earn_what_a_wrong_file_earns(name: str, verdict: Verdict) -> None:
    scheme = SCHEMES[name]
    fast = right(40.0, 40.0).outcome
    caught = fast.model_copy(update={"verdict": verdict})  # though its times were known
    assert scheme(RewardInput(caught, SOURCE)).value == scheme(wrong()).value
    again = scheme(RewardInput(caught, SOURCE, repeats="known")).value
    assert again == pytest.approx(scheme(wrong()).value - scheme.repeat_penalty)  # type: ignore[operator]


@pytest.mark.parametrize("name", SCHEMES)
def test_decoys_earn_what_a_wrong_file_earns(name: str) -> None:
    scheme = SCHEMES[name]
    assert scheme(right(4.0, 4.0, share=0.01)).value == scheme(wrong()).value
    assert scheme(right(4.0, 4.0, share=0.06)).value > scheme(wrong()).value  # type: ignore[operator]


def test_too_small_a_share_that_was_asked_for_is_the_candidate_s_own_fault() -> None:
    rejected = Outcome(verdict=Verdict.unmeasured, own_kernel_share=0.1)
    assert SCHEMES["kevin"](RewardInput(rejected, SOURCE)).value == 0.0


TOML = """
decoy_share = 0.1
repeat_penalty = 2.0
[[terms]]
term = "correct"
weight = 0.5
[[terms]]
term = "speedup"
form = "clipped"
most = 4.0
"""


def test_a_scheme_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "reward.toml"
    file.write_text(TOML)
    scheme = scheme_of(str(file))
    assert scheme(right(9.0)).value == 4.5
    assert set(scheme(right(9.0)).terms) == {"correct", "speedup"}
    as_json = tmp_path / "reward.json"
    as_json.write_text(scheme.model_dump_json())
    assert scheme_of(str(as_json)) == scheme
    assert scheme_of("kevin") is SCHEMES["kevin"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("reward.toml", TOML.replace("clipped", "squared"), r"terms.1.speedup.form: .*'plain', 'log'"),
        ("reward.toml", TOML.replace('"correct"', '"luck"'), "terms.0: .*luck"),
        ("reward.toml", TOML + '[[terms]]\nterm = "correct"\n', "each at most once"),
        ("reward.toml", "terms = []", "at least one term"),
        ("reward.toml", "decoy_share = ", "cannot be read"),
        ("reward.json", "{", "cannot be read"),
        ("reward.yaml", "", "unknown reward scheme"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UsageError, match=words) as raised:
        scheme_of(str(file))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        scheme_of(str(tmp_path / "no.toml"))


def test_discounted_returns() -> None:
    assert discounted([1.0, 2.0, 4.0], 0.5) == [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4.0]
    assert discounted([1.0, 2.0, 4.0], 0.0) == [1.0, 2.0, 4.0]
    assert discounted([], 0.4) == []


def test_a_return_that_lacks_a_later_reward_is_not_known() -> None:
    assert discounted([1.0, None, 4.0], 0.5) == [None, None, 4.0]
    assert discounted([1.0, None, 4.0], 0.0) == [1.0, None, 4.0]


def test_a_scheme_s_returns_are_discounted_by_its_gamma() -> None:
    assert Scheme(terms=(Correct(),)).returns([0.0, 1.0]) == [0.4, 1.0]  # Kevin's
    assert Scheme(terms=(Correct(),), gamma=1.0).returns([0.5, 1.0]) == [1.5, 1.0]


def test_a_reward_may_be_a_function_of_the_user_s(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def reward(seen):\n    return 2.0 if seen.right else -0.5\n")
    scheme = scheme_of(f"{file}:reward")
    assert scheme.baselines == ("eager",)
    (term,) = scheme.model_dump()["terms"]
    assert len(term["sha256"]) == 64  # so that a resumed training has the same one
    assert scheme(right(1.5)).value == 2.0 and scheme(wrong()).value == -0.5
    with pytest.raises(UsageError, match="does not exist"):
        scheme_of(f"{tmp_path / 'other.py'}:reward")
