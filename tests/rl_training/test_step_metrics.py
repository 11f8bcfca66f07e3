"""Metrics of a step: shares, speedups by family, and seconds."""

import time

import pytest

from kernelwright.agent.llm.model import Message
from kernelwright.kernelbench.records import Interval, Speedup, Verdict
from kernelwright.rl_training.outcome import Outcome, failed
from kernelwright.rl_training.trajectory import SpentSeconds, Trajectory, Turn

pytest.importorskip("trl")
from transformers import TrainerControl, TrainerState

from kernelwright.rl_training.tracking.step_metrics import StepClock, reply_metrics

_FAMILIES = {"softmax": "normalization", "relu": "activation"}
_MEASURED = SpentSeconds(queue=1.0, build=0.5, verify=2.0, time=3.0)


def rollout(task: str, *turns: Turn) -> Trajectory:
    return Trajectory(task=task, task_sha256="", origin="policy", turns=turns, ended="1 turns")


def turn(name: str, outcome: Outcome, reward: float | None, spent: SpentSeconds | None) -> Turn:
    prompt = (Message(role="user", content="Write one."),)
    return Turn(
        messages=prompt, reply=name, candidate=name, source=name, outcome=outcome, reward=reward, spent=spent
    )


def correct(eager: float) -> Outcome:
    interval = Interval(median=eager, low=eager, high=eager)
    return Outcome(verdict=Verdict.correct, speedup=Speedup(eager=interval), own_kernel_share=1.0)


WRONG = Outcome(verdict=Verdict.wrong_output)
UNTRIED = Outcome(verdict=Verdict.build_error)


def test_a_step_is_told_by_family_and_by_seconds() -> None:
    found = reply_metrics(
        [
            rollout("softmax", turn("a", correct(2.0), 0.7, _MEASURED)),
            rollout("softmax", turn("b", WRONG, 0.0, SpentSeconds(queue=4.0, build=0.5, verify=1.0))),
            rollout("relu", turn("c", correct(8.0), 2.1, _MEASURED.model_copy(update={"cached": True}))),
            rollout("relu", turn("d", failed("evaluator", "it died"), None, None)),
        ],
        _FAMILIES,
    )
    assert found["valid_fraction"] == pytest.approx(2 / 3)
    assert found["valid_fraction/normalization"] == 0.5 and found["valid_fraction/activation"] == 1.0
    assert found["unrewarded_fraction"] == 0.25
    assert found["speedup"] == pytest.approx(4.0)
    seconds = {name: found[f"{name}_s"] for name in ("queue", "build", "verify", "time")}
    assert seconds == {"queue": 5.0, "build": 1.0, "verify": 3.0, "time": 3.0}
    assert found["cache_hits"] == 1


def test_equal_files_of_a_step_are_evaluated_once() -> None:
    again = [rollout("softmax", turn("a", correct(2.0), 0.7, _MEASURED)) for _ in range(3)]
    other = rollout("relu", turn("a", WRONG, 0.0, _MEASURED))
    found = reply_metrics([*again, other], _FAMILIES)
    assert found["cache_hits"] == 2 and found["time_s"] == 6.0


def test_what_was_rejected_untried_is_no_hit() -> None:
    untried = [rollout("relu", turn("", UNTRIED, 0.0, SpentSeconds())) for _ in range(2)]
    assert reply_metrics(untried, _FAMILIES)["cache_hits"] == 0


def test_an_update_is_what_is_left_of_a_step() -> None:
    clock, state, control = StepClock(), TrainerState(), TrainerControl()
    clock.on_step_begin(None, state, control)
    with clock.measured("generate"):
        time.sleep(0.05)
    time.sleep(0.01)
    clock.on_optimizer_step(None, state, control)
    found = dict(clock.taken())
    assert found["generate_s"] >= 0.05 > 0.04 > found["update_s"] >= 0.01
    assert not clock.taken()
