"""Online training over a pool that answers by the text: mechanics, not learning."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from kernelwright.rl_training import trajectory
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.rewards.scheme import SCHEMES
from tests.helpers.results import run_factory
from tests.helpers.rl_training import tiny_policy

pytest.importorskip("trl")
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerState

from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.trainers import online
from kernelwright.rl_training.trainers.collapse import Collapsed, HealthLimits
from kernelwright.rl_training.trainers.online_run import train
from kernelwright.rl_training.trainers.policy import load_policy
from kernelwright.rl_training.trainers.settings import OnlineSettings
from kernelwright.rl_training.trainers.shared_rollouts import RewardFailed
from tests.helpers.rl_training.reading_pool import TASKS, Paying, ReadingPool, run, settings

pytestmark = pytest.mark.training


def trained(
    chosen: OnlineSettings, out: Path, pool: ReadingPool | None = None, callbacks: Sequence[object] = ()
) -> Path:
    return run(chosen, out, pool, callbacks).policy


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def alike(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.save(tmp_path_factory.mktemp("model") / "tiny", tiny_policy.BRIEF_CHAT)


@pytest.mark.parametrize("changed", [
    {}, {"estimator": "grpo", "loss": "dapo"}, {"estimator": "rloo", "loss": "cispo"}, {"loss": "gspo"},
    {"estimator": "remax", "turns": 2}, {"turns": 2, "smooth": True},
], ids=lambda changed: "-".join(map(str, changed.values())))  # fmt: skip
def test_every_estimator_moves_the_policy(model: Path, tmp_path: Path, changed: dict[str, object]) -> None:
    pool = ReadingPool()
    chosen = settings(model, steps=2, **changed)
    final = trained(chosen, tmp_path, pool)
    assert not alike(model, final)
    assert len(pool.seen) == 2 * 8
    kept = [t for path in sorted((tmp_path / "trajectories").iterdir()) for t in trajectory.read(path)]
    assert [len(t.turns) for t in kept] == [chosen.turns] * (16 // chosen.turns)
    assert {t.task for t in kept} == {data.task.id for data in TASKS}


@pytest.mark.parametrize("changed", [
    {}, {"entropy": 0.1}, {"kl": 0.1}, {"entropy": 0.1, "kl": 0.1, "loss": "cispo", "micro_batch": 2},
], ids=str)  # fmt: skip
def test_what_was_not_measured_moves_nothing(model: Path, tmp_path: Path, changed: dict[str, object]) -> None:
    final = trained(settings(model, steps=2, **changed), tmp_path, ReadingPool(silent=True))
    assert alike(model, final)


def test_without_a_verdict_the_policy_does_not_go_on_by_its_momentum_either(
    model: Path, tmp_path: Path
) -> None:
    pool = Paying(lambda number: [0, 2, 2.5, 3][number % 4] if number < 8 else None)
    final = trained(settings(model, steps=3, save_every=1, entropy=0.1, kl=0.1), tmp_path, pool)
    assert alike(tmp_path / "checkpoint-1", final) and not alike(model, final)


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "remax"])
def test_equal_rewards_of_a_prompt_have_equal_advantages(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, estimator: str, smooth: bool
) -> None:
    found: list[list[float]] = []

    def noted(*given: object) -> list[float]:
        found.append(advantages(*given))  # type: ignore[arg-type]
        return found[-1]

    advantages = online.advantages
    monkeypatch.setattr(online, "advantages", noted)
    first = [0, 0, 0, 2, 2, 2, 2, 2]
    pool = Paying(lambda number: [*first, *[2] * 8, *[0, 3, 0, 3, 3, 3, 3, 3]][number])
    trained(settings(model, steps=3, estimator=estimator, smooth=smooth), tmp_path, pool)
    _, alike, mixed = found
    assert alike == [0.0] * 8
    assert mixed[1] == mixed[3] > mixed[0] == mixed[2]
    assert mixed[4:] == [0.0] * 4


def test_a_tiny_nucleus_leaves_one_reply_a_prompt(model: Path, tmp_path: Path) -> None:
    pools = {top_p: ReadingPool() for top_p in (1.0, 1e-6)}
    for top_p, pool in pools.items():
        trained(settings(model, steps=1, top_p=top_p), tmp_path / str(top_p), pool)
    assert len(set(pools[1.0].seen)) == 8
    assert len(set(pools[1e-6].seen)) <= 2  # a step has two prompts


class Killed(TrainerCallback):
    def on_step_end(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        if state.global_step == 3:
            raise KeyboardInterrupt


def test_a_run_that_was_ended_goes_on_exactly(model: Path, tmp_path: Path) -> None:
    chosen = settings(model, smooth=True)
    whole = trained(chosen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(chosen, tmp_path / "parts", callbacks=[Killed()])
    assert alike(whole, trained(chosen, tmp_path / "parts"))


def test_a_run_that_is_over_is_not_gone_on_with(model: Path, tmp_path: Path) -> None:
    chosen, again = settings(model, steps=3), ReadingPool()
    final = weights(trained(chosen, tmp_path))
    now = weights(trained(chosen, tmp_path, again))
    assert all(torch.equal(final[name], now[name]) for name in final) and not again.seen


def test_a_collapse_goes_back_to_what_was_good(model: Path, tmp_path: Path) -> None:
    """Rewards that are all alike from the third step on."""

    class Failing(ReadingPool):
        def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
            found = super().rejected(task, candidate, reason)
            late = len(self.seen) > 2 * 8 and not self.fixed
            return run_factory.evaluation(task, candidate, Verdict.wrong_output) if late else found

        fixed = False

    pool = Failing()
    begun, rates = [], {}

    class Mending(TrainerCallback):
        def on_train_begin(self, args: object, state: TrainerState, control: object, **_: object) -> None:
            begun.append(state.global_step)
            pool.fixed = len(begun) > 1

        def on_log(
            self, args: object, state: TrainerState, control: object, logs: dict[str, float], **_: object
        ) -> None:
            if "learning_rate" in logs:
                rates[len(begun)] = logs["learning_rate"]

    chosen = settings(model, steps=8)
    grader = Grader(pool, SCHEMES["log-speedup"])
    train(
        lambda: load_policy(chosen.model),
        lambda: TrainingEnvironment({data.task.id: data for data in TASKS}, grader),
        TASKS,
        chosen,
        tmp_path,
        [Mending()],
        HealthLimits(patience=3),
    )
    assert begun == [0, 2]
    assert rates == {1: 1e-2, 2: 5e-3}


class Restarts(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_train_begin(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        self.steps.append(state.global_step)


def test_a_policy_that_cannot_do_better_ends_the_run_early_and_is_written(
    model: Path, tmp_path: Path
) -> None:
    """Once each reply is as fast as the fastest before; the same command again does not go far."""
    pool = Paying(lambda number: [0, 2, 3, 3][number % 4] if number < 16 else 3)
    chosen = settings(model, steps=30, restores=0)
    done = run(chosen, tmp_path, pool, limits=HealthLimits(patience=3))
    assert (done.steps, done.settled) == (
        5,
        "rewards of a group are all alike, and the reward has not fallen",
    )
    assert load_policy(str(done.policy))
    restarts = Restarts()
    again = run(chosen, tmp_path, pool, [restarts], HealthLimits(patience=3))
    assert restarts.steps == [5] and again.steps == 6 and again.settled == done.settled


def test_a_policy_that_came_to_do_worse_has_collapsed_and_the_last_good_one_is_written(
    model: Path, tmp_path: Path
) -> None:
    pool = Paying(lambda number: [0, 2, 2.5, 3][number % 4] if number < 32 else 1.1)
    with pytest.raises(
        Collapsed, match=r"at step 7: rewards of .* alike; .*policy is the policy of checkpoint-4"
    ):
        run(settings(model, steps=30, restores=0), tmp_path, pool, limits=HealthLimits(patience=3))
    assert alike(tmp_path / "policy", tmp_path / "checkpoint-4")
    assert not (tmp_path / "checkpoint-6").exists()  # the same command again goes on from the last good one


def test_checkpoints_from_before_a_collapse_are_still_there_when_it_shows(
    model: Path, tmp_path: Path
) -> None:
    pool = Paying(lambda number: [0, 2, 2.5, 3][number % 4] if number < 16 else 0)
    with pytest.raises(Collapsed, match=r"almost no reply is valid; .* is the policy of checkpoint-2"):
        run(
            settings(model, steps=30, restores=0, save_every=1),
            tmp_path,
            pool,
            limits=HealthLimits(patience=6),
        )


def test_several_updates_with_the_same_replies(model: Path, tmp_path: Path) -> None:
    """The first is on policy, the second is not, and its ratios are clipped."""
    chosen = settings(model, steps=4, updates_per_batch=2, clip_low=1e-6, clip_high=1e-6)
    clipped: dict[int, float] = {}

    class Watch(TrainerCallback):
        def on_log(
            self, args: object, state: TrainerState, control: object, logs: dict[str, float], **_: object
        ) -> None:
            if "loss" in logs:
                clipped[state.global_step] = logs["clip_ratio/region_mean"]

    pool = ReadingPool()
    whole = trained(chosen, tmp_path / "whole", pool, [Watch()])
    assert len(pool.seen) == 2 * 8
    assert clipped[1] == clipped[3] == 0 and clipped[2] > 0 and clipped[4] > 0
    with pytest.raises(KeyboardInterrupt):
        trained(chosen, tmp_path / "parts", callbacks=[Killed()])
    assert alike(whole, trained(chosen, tmp_path / "parts"))


def test_a_collapse_that_comes_again_ends_the_run(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Collapsed, match="almost no reply has a reward"):
        trained(settings(model, steps=30, restores=0), tmp_path, ReadingPool(silent=True))


def test_a_reward_that_raises_is_one_line(model: Path, tmp_path: Path) -> None:
    class Broken(ReadingPool):
        def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
            raise ZeroDivisionError("by zero")

    with pytest.raises(RewardFailed, match="a reward raised ZeroDivisionError: by zero — fix it"):
        trained(settings(model), tmp_path, Broken())


def test_no_task(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no task"):
        train(
            lambda: load_policy(str(model)),
            lambda: TrainingEnvironment({}, None),
            [],
            settings(model),
            tmp_path,
        )  # type: ignore[arg-type]
