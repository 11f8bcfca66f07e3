"""How a batch of online training comes together: drawn again, in parts, and what its log says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.store.training import METRICS
from kernelwright.rl_training import trajectory
from tests.helpers.rl_training import tiny_policy

pytest.importorskip("trl")

from kernelwright.rl_training.tracking.metrics import MetricsFile
from kernelwright.rl_training.trainers import online
from kernelwright.rl_training.trainers.arguments import NOT_TRACKED, arguments, require_runnable
from kernelwright.rl_training.trainers.collapse import HealthLimits
from kernelwright.rl_training.trainers.online_run import _arguments
from kernelwright.rl_training.trainers.options import RlUpdateOptions, SftUpdateOptions
from tests.helpers.rl_training.reading_pool import Paying, ReadingPool, run, settings

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.save(tmp_path_factory.mktemp("model") / "tiny", tiny_policy.BRIEF_CHAT)


def logged(folder: Path) -> list[dict[str, float]]:
    lines = (folder / METRICS).read_text().splitlines()
    return [values for line in lines if "turn_reward" in (values := json.loads(line)["values"])]


def test_a_group_of_equal_rewards_is_drawn_again(model: Path, tmp_path: Path) -> None:
    pays = [
        0,
        0,
        0,
        0,
        1.5,
        1.2,
        1.5,
        1.2,
        1.1,
        1.1,
        1.1,
        1.1,
        1.3,
        1.4,
        1.3,
        1.4,
    ]  # the first group, its second draw, its third
    pool = Paying(lambda number: pays[number])
    run(settings(model, steps=1, redraws=5), tmp_path, pool, [MetricsFile(tmp_path)])
    assert len(pool.seen) == 16
    [kept] = (tmp_path / "trajectories").iterdir()
    rewarded = [made.rewards[0] for made in trajectory.read(kept)]
    assert len(rewarded) == 16 and len(set(rewarded[:4])) == len(set(rewarded[4:8])) == 2
    assert len(set(rewarded[8:12])) == len(set(rewarded[12:])) == 1  # those in whose place others came
    [values] = logged(tmp_path)
    assert values["redrawn_fraction"] == 0.5 and values["frac_reward_zero_std"] == 0


def test_drawing_again_is_bounded(model: Path, tmp_path: Path) -> None:
    pool = Paying(lambda number: 0)
    run(settings(model, steps=1, redraws=2), tmp_path, pool)
    assert len(pool.seen) == 3 * 8


@pytest.mark.parametrize("redraws", [0, 3])
def test_what_has_no_reward_is_not_drawn_again(model: Path, tmp_path: Path, redraws: int) -> None:
    pool = ReadingPool(silent=True)
    run(settings(model, steps=1, redraws=redraws), tmp_path, pool)
    assert len(pool.seen) == 8


@pytest.mark.parametrize(("at_once", "graded"), [(None, [0]), (3, [0, 3, 6]), (8, [0])])
def test_a_part_is_evaluated_while_the_next_is_generated(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int | None, graded: list[int]
) -> None:
    pool, seen = ReadingPool(), []

    def noted(self: Any, prompts: Sequence[Sequence[int]], greedy: Sequence[bool]) -> Any:
        seen.append(len(pool.seen))
        return completed(self, prompts, greedy)

    completed = online.OnlineTrainer._completed
    monkeypatch.setattr(online.OnlineTrainer, "_completed", noted)
    run(settings(model, steps=1, generated_at_once=at_once), tmp_path, pool)
    assert seen == graded and len(pool.seen) == 8


def test_each_step_logs_its_seconds_and_families(model: Path, tmp_path: Path) -> None:
    run(settings(model, steps=2), tmp_path, callbacks=[MetricsFile(tmp_path)])
    for values in logged(tmp_path):
        assert values["generate_s"] > 0 and values["update_s"] > 0
        assert values.keys() >= {"wait_s", "queue_s", "build_s", "verify_s", "time_s", "cache_hits"}
        assert any(name.startswith("valid_fraction/") for name in values)
    assert len(logged(tmp_path)) == 2


def test_vllm_is_told_what_was_chosen(tmp_path: Path) -> None:
    chosen = settings(
        tmp_path, vllm="colocate", vllm_memory=0.5, vllm_tensor_parallel=2, vllm_max_length=4096,
        vllm_sleep=True,
    )  # fmt: skip
    made = _arguments(chosen, arguments(chosen, tmp_path, NOT_TRACKED), HealthLimits())
    assert made.use_vllm and made.vllm_mode == "colocate" and made.vllm_enable_sleep_mode
    assert made.vllm_gpu_memory_utilization == 0.5 and made.vllm_tensor_parallel_size == 2
    assert made.vllm_max_model_length == 4096
    served = settings(tmp_path, vllm="server", vllm_url="http://gpu3:8000")
    made = _arguments(served, arguments(served, tmp_path, NOT_TRACKED), HealthLimits())
    assert made.vllm_mode == "server" and made.vllm_server_base_url == "http://gpu3:8000"


def test_adapters_learn_faster_unless_a_rate_is_given() -> None:
    assert (RlUpdateOptions().chosen_rate(False), RlUpdateOptions().chosen_rate(True)) == (2e-6, 2e-5)
    assert (SftUpdateOptions().chosen_rate(False), SftUpdateOptions().chosen_rate(True)) == (1e-5, 1e-4)
    assert RlUpdateOptions(learning_rate=1e-3).chosen_rate(True) == 1e-3


@pytest.mark.parametrize(("changed", "said"), [
    ({"vllm_memory": 0.5}, "vllm memory: that is of vLLM in mode colocate"),
    ({"vllm": "server", "vllm_sleep": True}, "vllm sleep: that is of vLLM in mode colocate"),
    ({"vllm": "colocate", "vllm_url": "http://gpu3:8000"}, "vllm url: that is of vLLM in mode server"),
    ({"redraws": 1, "estimator": "reinforce_plus_plus"}, "redraws: reinforce_plus_plus learns from"),
])  # fmt: skip
def test_options_that_would_do_nothing_are_refused(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        settings(tmp_path, **changed)


@pytest.mark.parametrize(("url", "said"), [
    ("http://127.0.0.1:9", "no vLLM answers at http://127.0.0.1:9"), ("gpu3:8000", "gpu3:8000 is no address"),
    ("http://gpu3:port", "is no address"),
])  # fmt: skip
def test_a_server_of_vllm_that_is_away_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setattr("kernelwright.rl_training.trainers.arguments._require", lambda *_: None)
    with pytest.raises(UsageError, match=said):
        require_runnable(settings(tmp_path, vllm="server", vllm_url=url))
