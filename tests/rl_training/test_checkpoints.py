"""Checkpoints are whole or not there, and what is resumed from one goes on as if nothing had been."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from transformers import TrainerCallback

from kernelwright.kernelbench.errors import StorageError
from kernelwright.rl_training.trainers.checkpoints import last_good
from kernelwright.rl_training.trainers.guards import Diverged, StopAtNaN
from tests.helpers.rl_training.tiny_policy import save
from tests.helpers.rl_training.tiny_training import Interrupt, Learning, learning, weights

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("policy"))


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """As on a full disk, writing fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_resume_goes_on_bit_for_bit(model: Path, tmp_path: Path) -> None:
    whole = learning(model, tmp_path / "whole")
    whole.train()
    assert names(tmp_path / "whole") == ["checkpoint-4", "checkpoint-6"]
    with pytest.raises(KeyboardInterrupt):
        learning(model, tmp_path / "broken", Interrupt(3)).train()
    found = last_good(tmp_path / "broken")
    assert found == tmp_path / "broken" / "checkpoint-2"
    resumed = learning(model, tmp_path / "broken")
    resumed.train(resume_from_checkpoint=str(found))
    ends = [weights(t.save_policy()) for t in (whole, resumed)]
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], weights(model))


@pytest.mark.parametrize("fits", ["nothing", "the weights"])
def test_a_full_disk_keeps_the_last_good_one(model: Path, tmp_path: Path, fits: str) -> None:
    # Adam's state has twice the size of the weights.
    size = 1000 if fits == "nothing" else (model / "model.safetensors").stat().st_size * 3 // 2
    learning(model, tmp_path, steps=2).train()
    with files_at_most(size), pytest.raises(StorageError) as raised:
        learning(model, tmp_path).train(resume_from_checkpoint=str(last_good(tmp_path)))
    said = str(raised.value)
    assert "\n" not in said and "checkpoint-4 cannot be written (" in said
    assert "; checkpoint-2 is whole — free some space" in said
    assert names(tmp_path) == ["checkpoint-2"]
    learning(model, tmp_path).train(resume_from_checkpoint=str(last_good(tmp_path)))  # and it goes on
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-6"]


def test_the_policy_of_before_stays_where_the_new_one_cannot_be_written(model: Path, tmp_path: Path) -> None:
    trainer = learning(model, tmp_path)
    before = weights(trainer.save_policy())
    trainer.train()
    with files_at_most(1000), pytest.raises(StorageError, match="policy cannot be written"):
        trainer.save_policy()
    assert torch.equal(weights(tmp_path / "policy"), before)
    after = weights(trainer.save_policy())
    assert not torch.equal(after, before)


def test_what_is_not_whole_is_not_taken(tmp_path: Path) -> None:
    assert last_good(tmp_path) is None
    for step, state in (
        (9, '{"global_step": 9}'),
        (10, '{"global_step": 10}'),
        (20, '{"global_st'),
        (30, ""),
    ):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-40").mkdir()
    assert last_good(tmp_path) == tmp_path / "checkpoint-10"


def test_an_error_of_the_training_itself_stays_what_it_is(model: Path, tmp_path: Path) -> None:
    trainer = learning(model, tmp_path)
    trainer.save_model = lambda *_, **__: (_ for _ in ()).throw(RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    trainer.save_model = lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space"))
    with pytest.raises(StorageError, match=r"checkpoint-2 cannot be written \(no space\) — free"):
        trainer.train()


def test_a_gradient_that_is_no_number_ends_the_training_and_changes_no_weight(
    model: Path, tmp_path: Path
) -> None:
    class Spoiled(Learning):
        def compute_loss(self, model: Any, inputs: Any, *others: Any, **named: Any) -> Any:
            loss = super().compute_loss(model, inputs, *others, **named)
            return loss * float("nan") if self.state.global_step == 3 else loss

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, model: Any = None, **__: Any) -> None:
            self.seen = weights(model)

    watch = Watch()
    trainer = learning(model, tmp_path, StopAtNaN(), watch)
    trainer.__class__ = Spoiled
    with pytest.raises(Diverged, match=r"not finite at step 4 \(.*\).* — start another run with a lower"):
        trainer.train()
    assert torch.equal(weights(trainer.model), watch.seen)
    assert torch.isfinite(watch.seen).all()
    assert names(tmp_path) == ["checkpoint-2"]
