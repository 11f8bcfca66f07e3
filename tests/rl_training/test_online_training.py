"""Online training over a pool that answers by the text: mechanics, not learning."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import run_factory
import tiny_policy
from recorded import WORK, builtin_task

from kernelbench.errors import UsageError
from kernelbench.evaluator import BASELINES, Effort
from kernelbench.records import Candidate, Evaluation, Task, Verdict
from rl_training import trajectory
from rl_training.environment.task_data import TaskData
from rl_training.environment.world import World
from rl_training.rewards.scheme import SCHEMES

pytest.importorskip("trl")
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerState

from rl_training.environment.environment import Environment
from rl_training.trainers.collapse import Collapsed, Limits
from rl_training.trainers.online import RewardFailed
from rl_training.trainers.online_run import train
from rl_training.trainers.policy import load_policy
from rl_training.trainers.settings import OnlineSettings

pytestmark = pytest.mark.usefixtures("trains")

TASKS = [
    TaskData(task=builtin_task(name), language="cpp", target=run_factory.TARGET, work=WORK)
    for name in ("level1/relu", "level1/softmax")
]


@dataclass
class ReadingPool:
    """The more of a reply is the letter e, the faster it is; what has none is wrong, or brings no verdict."""

    silent: bool = False
    seen: list[str] = field(default_factory=list)

    def submit(self, task: Task, candidate: Candidate, baselines: Sequence[str] = BASELINES,
               effort: Effort | None = None, to_beat: float | None = None, client: str = "") -> Future[Evaluation]:  # fmt: skip
        raise AssertionError("replies of a tiny model hold no file")

    def turned_away(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        self.seen.append(candidate.source)
        share = candidate.source.count("e") / max(1, len(candidate.source))
        if self.silent:
            return run_factory.evaluation(task, candidate, Verdict.correct)  # without a time
        if share == 0:
            return run_factory.evaluation(task, candidate, Verdict.wrong_output, reason="no e")
        return run_factory.evaluation(task, candidate, eager=1 + share)

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> None:
        return None


def settings(model: Path, **changed: object) -> OnlineSettings:
    plain = {
        "model": str(model), "steps": 4, "learning_rate": 1e-2, "batch": 8, "micro_batch": 8, "group": 4,
        "max_completion": 12, "cpu": True, "save_every": 2,
    }  # fmt: skip
    return OnlineSettings.model_validate(plain | changed)


def trained(
    chosen: OnlineSettings, out: Path, pool: ReadingPool | None = None, callbacks: Sequence[object] = ()
) -> Path:
    world = World(pool or ReadingPool(), SCHEMES["log-speedup"])
    return train(
        lambda: load_policy(chosen.model),
        lambda: Environment({data.task.id: data for data in TASKS}, world, chosen.turns),
        TASKS,
        chosen,
        out,
        callbacks,
    )


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


def test_what_was_not_measured_moves_nothing(model: Path, tmp_path: Path) -> None:
    final = trained(settings(model, steps=2), tmp_path, ReadingPool(silent=True))
    assert alike(model, final)


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


def test_a_collapse_goes_back_to_what_was_good(model: Path, tmp_path: Path) -> None:
    """Rewards that are all alike from the third step on."""

    class Failing(ReadingPool):
        def turned_away(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
            found = super().turned_away(task, candidate, reason)
            late = len(self.seen) > 2 * 8 and not self.mended
            return run_factory.evaluation(task, candidate, Verdict.wrong_output) if late else found

        mended = False

    pool = Failing()
    begun, rates = [], {}

    class Mending(TrainerCallback):
        def on_train_begin(self, args: object, state: TrainerState, control: object, **_: object) -> None:
            begun.append(state.global_step)
            pool.mended = len(begun) > 1

        def on_log(
            self, args: object, state: TrainerState, control: object, logs: dict[str, float], **_: object
        ) -> None:
            if "learning_rate" in logs:
                rates[len(begun)] = logs["learning_rate"]

    chosen = settings(model, steps=8)
    world = World(pool, SCHEMES["log-speedup"])
    train(
        lambda: load_policy(chosen.model),
        lambda: Environment({data.task.id: data for data in TASKS}, world),
        TASKS,
        chosen,
        tmp_path,
        [Mending()],
        Limits(patience=3),
    )
    assert begun == [0, 2]
    assert rates == {1: 1e-2, 2: 5e-3}


def test_a_collapse_that_comes_again_ends_the_run(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Collapsed, match="hardly a reply has a reward"):
        trained(settings(model, steps=30, restores=0), tmp_path, ReadingPool(silent=True))


def test_a_reward_that_raises_is_one_line(model: Path, tmp_path: Path) -> None:
    class Broken(ReadingPool):
        def turned_away(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
            raise ZeroDivisionError("by zero")

    with pytest.raises(RewardFailed, match="a reward raised ZeroDivisionError: by zero — mend it"):
        trained(settings(model), tmp_path, Broken())


def test_no_task(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no task"):
        train(lambda: load_policy(str(model)), lambda: Environment({}, None), [], settings(model), tmp_path)  # type: ignore[arg-type]
