"""Training in several processes: the same weights as in one, and one of them alone grades and writes."""

import json
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.rl_training.trainers.processes import from_first, share_of
from tests.helpers.rl_training import tiny_policy
from tests.helpers.rl_training.distributed import FSDP2, ZERO, launch

pytest.importorskip("trl")
from safetensors.torch import load_file

pytestmark = pytest.mark.training


def test_a_batch_is_divided_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_of(64, 4) == 16
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert share_of(64, 4) == 4
    with pytest.raises(UsageError, match="a batch of 24 is not a multiple of 4 processes") as refusal:
        share_of(24, 4)
    assert "--batch-size 32" in (refusal.value.fix or "")


def test_a_process_alone_is_the_first() -> None:
    assert from_first(lambda: 3) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"micro_batch": 4},
        # Nothing in the second process's replies teaches anything, but the first waits for its gradient.
        {"micro_batch": 2, "pays": [1.5, 1.2, 2.0, 0, None, None, None, None]},
        {
            "micro_batch": 2,
            "turns": 2,
            "smooth": True,
            "estimator": "rloo",
            "loss": "dapo",
            "pays": [1.5, 0, 2],
        },
    ],
    ids=["plain", "one_learns_nothing", "turns"],
)
def test_two_processes_train_as_one_does(changed: dict[str, object], tmp_path: Path) -> None:
    model = tiny_policy.save(tmp_path / "tiny", tiny_policy.BRIEF_CHAT)
    told = {n: launch(n, model, tmp_path / f"by-{n}", steps=2, batch=8, **changed) for n in (1, 2)}
    assert told[1] == "process 0: 2 steps, 16 replies graded\n"
    assert sorted(told[2].splitlines()) == [told[1].strip(), "process 1: 2 steps, 0 replies graded"]
    first, one, two = (
        load_file(folder / "model.safetensors")
        for folder in (model, tmp_path / "by-1" / "policy", tmp_path / "by-2" / "policy")
    )
    moved = max(float((one[name] - first[name]).abs().max()) for name in one)
    apart = max(float((one[name] - two[name]).abs().max()) for name in one)
    assert apart < 1e-3 * moved, (apart, moved)
    checkpoint = tmp_path / "by-2" / "checkpoint-2"
    assert {path.name for path in checkpoint.glob("rng_state_*.pth")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }
    assert (checkpoint / "running.json").is_file() and not (tmp_path / "by-2" / ".saving").exists()
    assert [path.name for path in sorted((tmp_path / "by-2" / "trajectories").iterdir())] == [
        "step-000001-0.jsonl",
        "step-000002-0.jsonl",
    ]


@pytest.mark.slow
def test_sharded_weights_are_those_of_one_process(tmp_path: Path) -> None:
    """With FSDP2, as `accelerate launch` configures it, over gloo."""
    model = tiny_policy.save(tmp_path / "tiny", tiny_policy.BRIEF_CHAT)
    arranged = {"steps": 2, "batch": 8, "micro_batch": 4, "turns": 2, "estimator": "rloo"}
    launch(1, model, tmp_path / "one", **arranged)
    launch(2, model, tmp_path / "sharded", FSDP2, **arranged)
    first, one, sharded = (
        load_file(folder / "model.safetensors")
        for folder in (model, tmp_path / "one" / "policy", tmp_path / "sharded" / "policy")
    )
    moved = max(float((one[name] - first[name]).abs().max()) for name in one)
    apart = max(float((one[name] - sharded[name]).abs().max()) for name in one)
    assert apart < 1e-3 * moved, (apart, moved)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_weights_by_zero_are_those_of_one_process(stage: int, tmp_path: Path) -> None:
    """With DeepSpeed, which few have installed, over gloo; the second run writes replies and goes on."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install deepspeed")
    model = tiny_policy.save(tmp_path / "tiny", tiny_policy.BRIEF_CHAT)
    sharding = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True}
    auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    file = tmp_path / "zero.json"
    file.write_text(json.dumps({"zero_optimization": sharding} | dict.fromkeys(auto, "auto")))
    arranged = {"steps": 2, "batch": 8, "micro_batch": 4}
    launch(1, model, tmp_path / "one", **arranged)
    launch(2, model, tmp_path / "zero", ZERO, **arranged, deepspeed=str(file), cpu=False)
    first, one, zero = (
        load_file(folder / "model.safetensors")
        for folder in (model, tmp_path / "one" / "policy", tmp_path / "zero" / "policy")
    )
    moved = max(float((one[name] - first[name]).abs().max()) for name in one)
    apart = max(float((one[name] - zero[name]).abs().max()) for name in one)
    assert apart < 1e-3 * moved, (apart, moved)
    longer = arranged | {"steps": 3, "samples": True, "deepspeed": str(file), "cpu": False}
    assert "process 0: 3 steps, 8 replies graded" in launch(2, model, tmp_path / "zero", ZERO, **longer)


@pytest.mark.slow
def test_sharded_processes_write_replies_of_their_own_lengths(tmp_path: Path) -> None:
    """Each goes on until all have ended, or one would wait for ever for another's weights."""
    model = tiny_policy.save(tmp_path / "tiny", tiny_policy.BRIEF_CHAT)
    told = launch(
        2, model, tmp_path / "out", FSDP2,
        steps=2, batch=8, micro_batch=4, max_completion=100, temperature=2.0, samples=True,
    )  # fmt: skip
    assert "process 0: 2 steps, 16 replies graded" in told
    launch(
        2, model, tmp_path / "out", FSDP2,
        steps=3, batch=8, micro_batch=4, max_completion=100, temperature=2.0, samples=True,
    )  # fmt: skip
    assert (tmp_path / "out" / "policy" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_training_in_two_processes_is_resumed(tmp_path: Path) -> None:
    model = tiny_policy.save(tmp_path / "tiny", tiny_policy.BRIEF_CHAT)
    launch(2, model, tmp_path / "whole", steps=4, batch=8, micro_batch=4)
    launch(2, model, tmp_path / "parts", steps=2, batch=8, micro_batch=4)
    launch(2, model, tmp_path / "parts", steps=4, batch=8, micro_batch=4)
    whole, parts = (
        load_file(tmp_path / name / "policy" / "model.safetensors") for name in ("whole", "parts")
    )
    assert max(float((whole[name] - parts[name]).abs().max()) for name in whole) < 1e-5
