"""Rollouts over a scripted pool: what is shown, what is learned from, and what is nobody's fault."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernelwright.agent.llm.coder import asked_for
from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.evaluator import EFFORTS, QUICK, Effort, Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Interval, Task, Verdict
from kernelwright.profiling.records import Profile
from kernelwright.rl_training.environment.gold import gold_check
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.rollout import Rollout
from kernelwright.rl_training.environment.task_data import TaskData, WinningKernel, tasks_of
from kernelwright.rl_training.rewards.hacks import HackMemory
from kernelwright.rl_training.rewards.scheme import SCHEMES
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import EXPRESSIONS, PROFILE, WORK, builtin_task, kernel, made, tried

DATA = TaskData(task=builtin_task("level1/relu"), language="cpp", target=run_factory.TARGET, work=WORK)
Answer = float | Interval | Verdict | Exception | None  # None: none comes


@dataclass
class ScriptedPool:
    """Gives one answer after the other; notes the efforts and baselines it was asked for."""

    answers: list[Answer]
    efforts: list[Effort | None] = field(default_factory=list)
    baselines: list[tuple[str, ...]] = field(default_factory=list)
    given_up: list[Future[Evaluation]] = field(default_factory=list)

    def submit(self, task: Task, candidate: Candidate, measurement: Measurement = Measurement(), client: str = "") -> Future[Evaluation]:  # fmt: skip
        self.efforts.append(measurement.effort)
        self.baselines.append(measurement.baselines)
        found: Future[Evaluation] = Future()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            found.set_exception(answer)
        elif isinstance(answer, Verdict):
            found.set_result(run_factory.evaluation(task, candidate, answer, reason=f"it is {answer}"))
        elif answer is not None:
            found.set_result(run_factory.evaluation(task, candidate, eager=answer))
        else:
            self.given_up.append(found)
        return found

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return run_factory.evaluation(task, candidate, Verdict.build_error, reason=reason)

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile | None:
        return PROFILE if evaluation.timing is not None else None


def grader(*answers: Answer, **settings: object) -> Grader:
    return Grader(ScriptedPool(list(answers)), SCHEMES["kevin"], **settings)  # type: ignore[arg-type]


def reply(expression: str = EXPRESSIONS[0]) -> str:
    return f"I fuse it.\n```python\n{kernel(expression)}```\n"


def efforts(of: Grader) -> list[Effort | None]:
    assert isinstance(of.pool, ScriptedPool)
    return of.pool.efforts


def test_the_first_prompt_is_the_coder_s(tmp_path: Path) -> None:
    rollout = Rollout(DATA, grader())
    assert rollout.messages == asked_for(DATA.situation, "cpp", (), None).messages
    with_section = Rollout(DATA, grader(), section="# Exemplars")
    assert with_section.messages[-1].content == rollout.messages[-1].content.rstrip("\n") + "\n\n# Exemplars"


def test_a_single_turn(tmp_path: Path) -> None:
    rollout = Rollout(DATA, grader(2.0))
    turn = rollout.take(reply(), reasoning="hm")
    assert turn.reward == pytest.approx(0.3 + 0.98 * 2.0)
    assert (turn.reasoning, turn.source) == ("hm", kernel())
    assert rollout.ended == "1 turns"
    trajectory = rollout.trajectory()
    assert trajectory.turns == (turn,) and trajectory.task == DATA.task.id


def test_later_turns_see_the_best_file_the_failure_and_what_was_measured() -> None:
    rollout = Rollout(DATA, grader(2.0, Verdict.wrong_output, 2.5), turns=3)
    rollout.take(reply(EXPRESSIONS[0]))
    second = rollout.messages[-1].content
    assert "# The best file so far (round 0)" in second and kernel(EXPRESSIONS[0]).strip() in second
    assert "2 (1.96 to 2.04) times as fast as eager" in second and "bound by memory" in second
    rollout.take(reply(EXPRESSIONS[1]))
    third = rollout.messages[-1].content
    assert (
        "# The latest attempt derived from it, which failed (round 1)" in third
        and "it is wrong_output" in third
    )
    assert not rollout.ended
    rollout.take(reply(EXPRESSIONS[2]))
    assert rollout.ended == "3 turns"
    assert rollout.trajectory().rewards == (pytest.approx(2.26), 0.0, pytest.approx(2.75))


def test_replies_that_cannot_be_used_are_failures_that_say_why() -> None:
    cases = {
        "I would fuse it.": "defines class ModelNew",
        "```python\nclass ModelNew(:\n```": "not valid Python",
        f"```python\n{DATA.task.source}\n```": "defines class ModelNew",
        "```python\nimport torch\nclass ModelNew(torch.nn.Module): ...\n```": "no kernels of its own",
        "": "the reply is empty",
    }
    for said, words in cases.items():
        rollout = Rollout(DATA, grader(), turns=2)
        turn = rollout.take(said)
        assert turn.outcome.verdict is Verdict.build_error and words in turn.outcome.reason
        assert turn.reward == 0.0 and not rollout.ended
        assert words in rollout.messages[-1].content


def test_a_draft_in_a_thought_is_not_evaluated() -> None:
    """Neither of an unfinished thought, nor where the answer cannot be used: a policy is paid for answers."""
    for said in (
        f"<think>\n{reply()}",
        f"<think>\n{reply()}</think>\n",
        f"{reply()}</think>\nI could not finish.",
        f"<think>\n{reply()}</think>\n```python\nclass ModelNew(:\n```",
    ):
        of = grader()  # without an answer to give
        turn = Rollout(DATA, of).take(said)
        assert (turn.reward, turn.source, efforts(of)) == (0.0, "", [])
    assert Rollout(DATA, grader(2.0)).take(f"{reply(EXPRESSIONS[1])}</think>{reply()}").source == kernel()


def test_the_same_file_again_is_turned_away() -> None:
    rollout = Rollout(DATA, grader(2.0), turns=2)
    rollout.take(reply())
    turn = rollout.take(reply())
    assert turn.reward == 0.0 and "repeats the file of round 0" in turn.outcome.reason


FAILURES: dict[str, tuple[Answer, str]] = {
    "evaluator": (InfrastructureError("a worker died", "try again"), "a worker died"),
    "task": (TaskError("get_inputs raises", "fix the task"), "get_inputs raises"),
    "patience": (None, "no verdict came in time"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_the_evaluator_does_wrong_is_no_penalty_and_no_crash(failure: str) -> None:
    answer, words = FAILURES[failure]
    made_world = grader(2.0, answer, patience_s=0.05)
    rollout = Rollout(DATA, made_world, turns=4)
    rollout.take(reply())
    turn = rollout.take(reply(EXPRESSIONS[1]))
    assert turn.reward is None and turn.terms == {}
    assert (turn.outcome.kind, turn.outcome.failure, turn.outcome.reason) == (
        "infrastructure",
        failure,
        words,
    )
    assert rollout.ended == f"no verdict: {words}"
    assert isinstance(made_world.pool, ScriptedPool)
    assert all(future.cancelled() for future in made_world.pool.given_up)  # nobody waits for it any more


def test_a_closed_pool_is_nobody_s_fault() -> None:
    pending_world = grader(None)
    pending = Rollout(DATA, pending_world).begin(reply())
    assert isinstance(pending_world.pool, ScriptedPool)
    pending_world.pool.given_up[0].cancel()
    judged = pending.result()
    assert judged.outcome.failure == "evaluator" and judged.reward.value is None


def test_a_defect_in_the_environment_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        Rollout(DATA, grader(ZeroDivisionError())).take(reply())


def test_what_is_too_good_is_measured_again_and_the_lower_counts() -> None:
    lucky = grader(8.0, 2.0)
    turn = Rollout(DATA, lucky).take(reply())
    assert efforts(lucky) == [QUICK, EFFORTS["full"]]
    assert turn.outcome.low("eager") == pytest.approx(0.98 * 2.0)
    assert turn.reward == pytest.approx(0.3 + 0.98 * 2.0)
    assert lucky.best.of(DATA.task.id) == pytest.approx(0.98 * 2.0)


def test_what_is_twice_the_best_so_far_is_measured_again() -> None:
    made_world = grader(1.2, 1.3, 2.9, 2.8)
    rollout = Rollout(DATA, made_world, turns=3)
    for expression in EXPRESSIONS:
        turn = rollout.take(reply(expression))
    assert efforts(made_world) == [QUICK, QUICK, QUICK, EFFORTS["full"]]
    assert turn.outcome.low("eager") == pytest.approx(0.98 * 2.8)


def test_what_is_wrong_the_second_time_is_wrong_and_what_has_no_second_time_is_not_known() -> None:
    flaky = Rollout(DATA, grader(8.0, Verdict.nondeterministic)).take(reply())
    assert flaky.outcome.kind == "cheated" and flaky.reward == 0.0
    lost = Rollout(DATA, grader(8.0, InfrastructureError("a worker died", ""))).take(reply())
    assert lost.reward is None


def test_the_stored_winner_is_the_best_so_far(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path) as run:
        run.add_task(DATA.task)
        winner = tried(run, DATA.task, made(kernel()), Interval(median=1.3, low=1.2, high=1.4))
        (data,) = tasks_of(run)
    assert data.winner is not None and data.winner.candidate == winner
    assert data.work == WORK and data.situation == DATA.situation
    assert TaskData.model_validate_json(data.model_dump_json()) == data
    doubted = grader(2.9, 2.9)
    Rollout(data, doubted).take(reply(EXPRESSIONS[1]))
    assert len(efforts(doubted)) == 2


def test_replies_are_evaluated_at_a_time() -> None:
    """All are submitted before the first verdict is waited for."""
    made_world = grader(1.5, 2.5)
    rollouts = [Rollout(DATA, made_world), Rollout(DATA, made_world)]
    pending = [
        rollout.begin(reply(expression)) for rollout, expression in zip(rollouts, EXPRESSIONS, strict=False)
    ]
    assert len(efforts(made_world)) == 2
    turns = [r.finish(p, reply(e)) for r, p, e in zip(rollouts, pending, EXPRESSIONS, strict=False)]
    assert [turn.reward for turn in turns] == [pytest.approx(1.77), pytest.approx(2.75)]


def test_baselines_are_what_the_scheme_needs() -> None:
    needs = Grader(ScriptedPool([2.0]), SCHEMES["cuda-agent"])
    Rollout(DATA, needs).take(reply())
    assert isinstance(needs.pool, ScriptedPool)
    assert needs.pool.baselines == [("eager", "compile")]


def test_who_repeats_a_hack_pays_and_is_shown_it(tmp_path: Path) -> None:
    with HackMemory(tmp_path / "hacks.db") as hacks:
        made_world = grader(Verdict.cheating, Verdict.cheating, 1.5, hacks=hacks)
        rollout = Rollout(DATA, made_world, turns=3)
        first = rollout.take(reply("x[i]"))
        assert first.reward == 0.0 and "keep coming back" not in rollout.messages[-1].content
        again = rollout.take(reply("x[i] + 0"))
        assert again.reward == -0.5 and again.terms["repeated_hack"].value == -0.5
        shown = rollout.messages[-1].content
        assert "# Files that were rejected and keep coming back" in shown
        assert kernel("x[i]").strip() in shown and "cheating: it is cheating" in shown
        honest = rollout.take(reply(EXPRESSIONS[2]))
        assert honest.reward == pytest.approx(0.3 + 0.98 * 1.5)
        assert "keep coming back" in Rollout(DATA, made_world).messages[-1].content  # others are warned, too


def test_the_gold_check_says_what_is_paid_for_and_should_not_be() -> None:
    """The scripted pool takes the disguised reference for a kernel; the real one is asked elsewhere."""
    winner = WinningKernel(candidate=made(kernel()), speedup=Interval(median=4.0, low=3.0, high=5.0))
    data = DATA.model_copy(update={"winner": winner})
    slower = gold_check(grader(2.0, 1.0), data)
    assert slower.problems == (
        "the winner's speedup is at most 2.04, and was at least 3",
        "the reference, disguised, earns 1.28, a wrong file 0",
    )
    assert slower.reference_rewards == {"as it stands": 0.0, "renamed": 0.0, "disguised": pytest.approx(1.28)}
    lost = gold_check(grader(Verdict.timeout, InfrastructureError("a worker died", "")), data)
    assert lost.problems == (
        "the winner is timeout: it is timeout",
        "the reference, disguised, has no verdict: a worker died",
    )
    assert gold_check(grader(Verdict.cheating), DATA).problems == ()
