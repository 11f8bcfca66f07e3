"""What the models are shown: complete, of one candidate, and no longer than it helps."""

from dataclasses import replace

import pytest

from kernelwright.agent.llm.coder import objection, start_of
from kernelwright.agent.llm.judge import predictions
from kernelwright.agent.llm.model import estimated_tokens
from kernelwright.agent.llm.prompting import (
    FOLDER,
    NAMES,
    PromptSubject,
    agent_messages,
    coder_messages,
    essence,
    examples,
    judge_messages,
    metrics_of,
    outcome,
    repair_message,
    task_note,
)
from kernelwright.agent.llm.situation import Situation
from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.evaluator.workloads import combined
from kernelwright.kernelbench.records import (
    Advice,
    Candidate,
    Environment,
    Evaluation,
    Interval,
    Precision,
    Size,
    Speedup,
    Stages,
    Task,
    Timing,
    Verdict,
    Work,
)
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.diagnosis import diagnose
from kernelwright.profiling.records import Metric, Profile, Remark
from kernelwright.profiling.selection import MetricSample, select
from tests.helpers.anywhere import TARGET as ANY_TARGET
from tests.helpers.gpu.h100 import H100

CHIP = {"chip": "Testium 9000", "threads": 8, "last_level_cache_bytes": 32 << 20}
CEILINGS = {"copy_bytes_s": 2e10, "fp32_flops_s": 3e11}
TARGET = ANY_TARGET.model_copy(
    update={
        "ceilings": ANY_TARGET.ceilings.model_copy(update=CEILINGS),
        "fingerprint": ANY_TARGET.fingerprint.model_copy(update=CHIP),
    }
)
TASK = Task(id="file:relu", level=1, source="class Model: pass  # the reference\n")
WORK = Work(input_bytes=6_000_000, weight_bytes=0, output_bytes=4_000_000, flops=0)
METRIC = Metric(name="bandwidth_share", value=0.4321, unit="1", provenance="roofline")


def attempt(
    name: str, verdict: Verdict, time_us: float = 0.0, reason: str = "because", advice: Advice | None = None
) -> Attempt:
    candidate = Candidate(source=f"# {name}\nclass ModelNew: pass\n", language="cpp", author="llm:m")
    correct = verdict is Verdict.correct
    found = Interval(median=time_us, low=time_us * 0.98, high=time_us * 1.02)
    ratio = Interval(median=1000 / time_us, low=990 / time_us, high=1010 / time_us) if correct else None
    evaluation = Evaluation(
        task=TASK.id,
        candidate=candidate.sha256,
        target=TARGET,
        verdict=verdict,
        reason=reason,
        timing=Timing(candidate_us=found, calls_per_block=1, rounds=6) if correct else None,
        speedup=Speedup(eager=ratio) if correct else None,
        stages=Stages(),
        environment=Environment(sandbox=()),
    )
    profile = Profile(metrics=(METRIC,), bottleneck="memory", speed_of_light=0.4) if correct else None
    return Attempt(candidate, evaluation, profile, advice)


def advice_on(attempt: Attempt, gain: float = 1.5) -> Advice:
    return Advice(
        bottleneck="THE-BOTTLENECK",
        method="THE-METHOD",
        plan="THE-PLAN",
        predicted_gain=gain,
        about=attempt.candidate.sha256,
    )


SITUATION = Situation(TASK, TARGET, WORK, ("vectorize, softmax: 2 of 3 faster",))


def test_the_first_prompt_has_the_task_the_machine_and_a_guide() -> None:
    system, user = coder_messages(SITUATION, "cpp", None, None, None)
    assert "compile_cpp" in system.content and "kernelwright/math.h" in system.content
    assert TASK.source.strip() in user.content and TASK.id in user.content
    assert "Testium 9000, 8 threads" in user.content and "32 MiB" in user.content
    assert "20 GB/s" in user.content and "10 MB at least: 500 us at the measured rates" in user.content
    assert "Precision of the tensors: fp32." in user.content


def test_the_system_message_is_the_same_for_all_tasks_of_a_language_and_long_enough_to_be_cached() -> None:
    other = Task(id="file:other", level=2, source="class Model: ...\n", precision=Precision.bf16)
    for language in NAMES:
        one, two = (
            coder_messages(situation, language, None, None, None)[0].content  # type: ignore[arg-type]
            for situation in (SITUATION, Situation(other, H100, WORK))
        )
        assert one == two
        assert estimated_tokens(one) > 3000  # OpenAI caches from 1024 tokens on, Anthropic from 4096 at most


def test_coder_and_judge_have_the_same_rules() -> None:
    rules = (FOLDER / "rules.md.j2").read_text().strip()
    correct, failed = attempt("c", Verdict.correct, 500), attempt("f", Verdict.wrong_output)
    assert rules in coder_messages(SITUATION, "cpp", None, None, None)[0].content
    for judged in (correct, failed):
        system, _ = judge_messages(SITUATION, PromptSubject(judged, 0), (), ())
        assert rules in system.content and "compile_cpp" in system.content


def test_a_later_prompt_has_the_best_the_failure_since_and_the_advice() -> None:
    best, failed = (
        attempt("best", Verdict.correct, 500),
        attempt("failed", Verdict.wrong_output, reason="row 3"),
    )
    _, user = coder_messages(
        SITUATION, "cpp", PromptSubject(best, 1), PromptSubject(failed, 2), advice_on(best), is_best=True
    )
    text = user.content
    assert (
        text.index("# best")
        < text.index("500 (490 to 510) us")
        < text.index("# failed")
        < text.index("row 3")
    )
    assert text.index("row 3") < text.index("THE-BOTTLENECK") < text.index("THE-PLAN")
    assert "2 (1.98 to 2.02) times as fast" in text and "40% of what the roofline allows" in text


def test_advice_code_and_metrics_are_of_one_candidate() -> None:
    first, second = attempt("first", Verdict.correct, 500), attempt("second", Verdict.correct, 400)
    with pytest.raises(AssertionError):
        coder_messages(SITUATION, "cpp", PromptSubject(second, 1), None, advice_on(first))
    again = attempt("first", Verdict.build_error)  # the same file, not evaluated
    shown = start_of([first, second, again], advice_on(first))
    assert shown == PromptSubject(first, 0)
    assert start_of([first, second], None) == PromptSubject(second, 1)


def test_the_judge_corrects_what_failed_and_optimizes_what_is_correct() -> None:
    failed = attempt("failed", Verdict.build_error, reason="k.cpp:3: error: no")
    system, user = judge_messages(SITUATION, PromptSubject(failed, 2), (), ())
    assert "critical_issue" in system.content and "k.cpp:3" in user.content and "Metrics" not in user.content
    correct = attempt("correct", Verdict.correct, 500)
    system, user = judge_messages(
        SITUATION, PromptSubject(correct, 2), (METRIC,), ["round 1, x: predicted 2, came to 1"]
    )
    assert "predicted_gain" in system.content and "bandwidth_share = 0.4321" in user.content
    assert "came to 1" in user.content


def test_the_judge_sees_the_metrics_that_are_kept_each_with_its_kernel() -> None:
    correct = attempt("good", Verdict.correct, 100.0)
    kernels = (metric("spills", 3, "twice"), metric("l2_throughput", 0.5, "twice"))
    profile = Profile(metrics=(METRIC, *kernels), bottleneck="memory", speed_of_light=0.4)
    correct = replace(correct, profile=profile)
    samples = [
        MetricSample(group, float(n), {"spills": -n if group == "a" else n, "l2_throughput": n})
        for group in "ab"
        for n in range(6)
    ]
    usual, kept = metrics_of(correct, None), metrics_of(correct, select(samples, "cpu", [""]))
    assert [m.name for m in usual] == ["bandwidth_share", "spills"]
    assert [m.name for m in kept] == ["bandwidth_share", "l2_throughput"]
    _, user = judge_messages(SITUATION, PromptSubject(correct, 2), kept, ())
    assert "- bandwidth_share = 0.4321 (roofline; higher is better, at most 1): memory floor" in user.content
    assert "- l2_throughput of twice = 0.5 (ncu; higher is better, at most 1): L2 throughput" in user.content


def test_the_judge_is_told_what_was_counted_in_emulation_and_where() -> None:
    correct = attempt("good", Verdict.correct, 100.0)
    counted = (metric("emulated_store_sectors", 32, "turn"), metric("emulated_sector_use", 0.25, "turn"))
    remark = Remark(
        kernel="turn",
        line=4,
        code="y[c] = x[r];",
        text="a store takes 32 sectors, 4 would suffice",
        provenance="emulated",
        metric="emulated_store_sectors",
    )
    profile = Profile(metrics=counted, bottleneck="memory", speed_of_light=0.4, remarks=(remark,))
    profile = profile.model_copy(update={"findings": diagnose(profile, correct.evaluation)})
    correct = replace(correct, profile=profile)
    _, user = judge_messages(SITUATION, PromptSubject(correct, 2), metrics_of(correct, None), ())
    assert (
        "- Uncoalesced access: only 25% of the global-memory sectors that turn's warps request"
        in user.content
    )
    assert "line 4, a store takes 32 sectors, 4 would suffice" in user.content
    assert "- emulated_store_sectors of turn = 32 sectors (emulated; lower is better)" in user.content
    assert profile.findings[0].most_gain == 2.5  # no more than the roofline leaves


def test_a_long_failure_is_cut_to_its_errors() -> None:
    noise = "\n".join(f"note: candidate template {i}" for i in range(2000))
    reason = f"{noise}\nk.cpp:7:9: error: 'q' was not declared\n    7 |   q = 1;\n      |   ^\n{noise}"
    kept = essence(reason)
    assert "'q' was not declared" in kept and "q = 1;" in kept and len(kept) < 500
    assert len(essence("x" * 100_000)) < 3200
    assert essence("short\ntext") == "short\ntext"


def test_what_predictions_came_to() -> None:
    first = attempt("first", Verdict.correct, 600)
    second = attempt("second", Verdict.correct, 500, advice=advice_on(first, 2.0))
    third = attempt("third", Verdict.wrong_output, advice=advice_on(second, 1.3))
    assert predictions([first, second, third]) == [
        "round 1, THE-METHOD: predicted 2.00, measured 1.20",
        "round 2, THE-METHOD: predicted 1.30, the file failed (wrong_output)",
    ]


def with_floor(found: Attempt, floor_us: float | None) -> Attempt:
    """The attempt with this floor; eager takes 1000 µs."""
    timing = found.evaluation.timing
    assert timing is not None
    known = timing.model_copy(update={"floor_us": floor_us})
    evaluation = found.evaluation.model_copy(update={"timing": known})
    return replace(found, evaluation=evaluation)


def test_coder_judge_and_agent_are_told_what_is_left_to_gain() -> None:
    """500 of 1000 µs, where the floor is 200: 800 / (800 + 300)."""
    good = with_floor(attempt("good", Verdict.correct, 500), 200)
    shown = PromptSubject(good, 1)
    said = "Speed-of-light score (0.5 is eager, 1 the roofline): 0.73; at most 2.50 times faster is left."
    for messages in (
        coder_messages(SITUATION, "cpp", shown, None, None, is_best=True),
        judge_messages(SITUATION, shown, (METRIC,), ()),
        agent_messages(SITUATION, "cpp", (good,), shown, "all"),
    ):
        assert said in messages[1].content
    assert "no more than the outcome says is left" in judge_messages(SITUATION, shown, (), ())[0].content


def test_what_is_below_the_floor_is_said_to_be_doubtful_and_an_unknown_floor_is_left_out() -> None:
    good = attempt("good", Verdict.correct, 500)
    assert "none: 1.20 times faster than the floor, so a ceiling is wrong" in outcome(with_floor(good, 600))
    assert "Speed-of-light" not in outcome(with_floor(good, None))


def test_the_score_with_a_hidden_size_says_nothing_of_its_floor() -> None:
    """All sizes alike score 0.73; what is left would tell the hidden size's bytes to the last digit."""
    said = outcome(at_sizes(*[with_floor(attempt("k", Verdict.correct, 500), 200)] * 3))
    assert "Speed-of-light score (0.5 is eager, 1 the roofline): 0.73." in said and "is left" not in said
    beyond = outcome(at_sizes(*[with_floor(attempt("k", Verdict.correct, 500), 600)] * 3))
    assert "Speed-of-light" not in beyond


def test_unmeasured_candidates_have_an_outcome_too() -> None:
    assert "unmeasured" in outcome(attempt("triton", Verdict.unmeasured, reason="no GPU"))


@pytest.mark.parametrize("language", NAMES)
def test_every_language_has_a_guide_and_three_examples(language: str) -> None:
    system, _ = coder_messages(SITUATION, language, None, None, None)  # type: ignore[arg-type]
    shown = examples(language)  # type: ignore[arg-type]
    assert NAMES[language] in system.content and len(shown) == 3
    assert all(example.title and example.source.strip() in system.content for example in shown)


HIDDEN_ROWS = "7919"
SEVERAL = TASK.model_copy(
    update={
        "source": "rows = 64\nclass Model: pass\n",
        "workload": (
            Size(constants={"rows": "64", "dim": "8"}, weight=9),
            Size(constants={"rows": HIDDEN_ROWS, "dim": "8"}, hidden=True),
            Size(constants={"rows": "1024", "dim": "8"}),
        ),
    }
)


def at_sizes(*results: Attempt) -> Attempt:
    """An attempt at the sizes above, of attempts at each."""
    found = combined(SEVERAL, [each.evaluation for each in results])
    return replace(results[-1], evaluation=found)


def test_a_coder_is_told_the_sizes_that_are_not_hidden() -> None:
    _, user = coder_messages(Situation(SEVERAL, TARGET, WORK), "cpp", None, None, None)
    assert "- rows=64, dim=8: 9\n- rows=1024, dim=8: 1\n- another size, which is not shown\n" in user.content
    assert "Calls differ in rows: `forward` must be right and fast at any size" in user.content
    assert "A call at rows=64, dim=8 must read and write 10 MB at least" in user.content


def test_the_prompt_of_a_task_of_one_size_has_nothing_of_sizes() -> None:
    _, user = coder_messages(SITUATION, "cpp", None, None, None)
    assert "class Model: pass  # the reference\n```\n\n# The hardware\n" in user.content
    assert "A call must read and write 10 MB at least" in user.content


def test_a_result_at_several_sizes_is_told_by_size_and_a_hidden_one_by_its_speedup() -> None:
    each = [attempt("k", Verdict.correct, time_us) for time_us in (100.0, 321.0, 500.0)]
    said = outcome(at_sizes(*each))
    assert "Result: correct at all sizes, " in said
    assert "- at rows=64, dim=8 (weight 9): 100 (98 to 102) us, 10 (9.9 to 10.1) times as fast" in said
    assert "- at a hidden size: 3.115 (" in said and "321 (" not in said
    assert "At rows=64, dim=8 it is " in said


def test_the_shape_of_a_hidden_size_never_reaches_a_model() -> None:
    reason = f"output of ({HIDDEN_ROWS}, 8), expected ({HIDDEN_ROWS}, 8): 3 elements differ"
    right, wrong = attempt("k", Verdict.correct, 100.0), attempt("k", Verdict.wrong_output, reason=reason)
    failed = at_sizes(right, wrong)
    assert failed.evaluation.verdict is Verdict.wrong_output
    good = at_sizes(*[attempt("good", Verdict.correct, 200.0)] * 3)
    situation, history = Situation(SEVERAL, TARGET, WORK), (good, failed)
    shown, later = PromptSubject(good, 0), PromptSubject(failed, 1)
    messages = [
        *coder_messages(situation, "cpp", shown, later, None, True, history),
        *judge_messages(situation, later, (), (), (), history),
        *judge_messages(situation, shown, metrics_of(good, None), (), (), history),
        *agent_messages(situation, "cpp", history, shown, "all"),
    ]
    texts = [*(message.content for message in messages), task_note(SEVERAL, history), repair_message(failed)]
    assert not [text for text in texts if HIDDEN_ROWS in text]
    assert "wrong output at a hidden size" in texts[-1] and "It is right at rows=64, dim=8." in texts[-1]
    assert any("rows=1024" in text for text in texts)


def test_a_file_of_another_language_is_objected_to_by_its_name() -> None:
    source = "import helion\n@helion.kernel()\ndef k(x): pass\n"
    assert objection(source, "triton", ()) == "the file has Helion kernels, but Triton was requested"
