"""Trajectories of what models did in a run, for offline learning."""

from pathlib import Path

import pytest

from kernelwright.kernelbench.records import Verdict
from kernelwright.rl_training.replies import trajectories
from kernelwright.rl_training.rewards.scheme import SCHEMES
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import EXPRESSIONS, answered, builtin_task, kernel, made, tried


def test_a_model_s_attempts_are_turns_with_their_own_prompts_and_rewards(tmp_path: Path) -> None:
    relu = builtin_task("level1/relu")
    with run_factory.new_run(tmp_path) as run:
        run.add_task(relu)
        sources = [*(kernel(expression) for expression in EXPRESSIONS), kernel("std::exp(x[i])")]
        answers = [answered(run, relu, source, f"thought {i}") for i, source in enumerate(sources)]
        tried(run, relu, made(kernel("x[i]")), 1.1)  # the builtin coder's, which no policy wrote
        first = tried(run, relu, answers[1], None, Verdict.wrong_output)  # not in the order of the calls
        tried(run, relu, answers[3], 1.5)  # another sample, made from nothing
        fixed = answers[0].model_copy(update={"parents": (first.sha256,)})
        tried(run, relu, fixed, 2.0)
        tried(run, relu, answers[2].model_copy(update={"parents": (fixed.sha256,)}), 4.0)
        found, alone = trajectories(run, SCHEMES["kevin"])
    assert found.origin.endswith("llm:small")
    assert [turn.source for turn in found.turns] == [sources[1], sources[0], sources[2]]
    assert [turn.reasoning for turn in found.turns] == ["thought 1", "thought 0", "thought 2"]
    assert all(
        turn.messages[-1].content.startswith("# The task: builtin:level1/relu") for turn in found.turns
    )
    assert found.rewards == (0.0, pytest.approx(0.3 + 0.98 * 2), pytest.approx(0.3 + 0.98 * 4))
    assert [turn.source for turn in alone.turns] == [sources[3]]
