"""Atomic checkpoints: a full disk, or a kill, in the middle of one leaves the last one usable.

transformers writes a checkpoint file by file into the folder that a resume would take. Here it is written to
a staging folder, flushed to disk, and then renamed.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import Trainer
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import ADAPTER_CONFIG_NAME

from kernelwright.kernelbench.errors import StorageError
from kernelwright.rl_training.trainers.processes import is_first, wait

POLICY = "policy"  # the trained model, in the run's folder
_STAGING = ".saving"
_SECOND = "ref"  # TRL's name of adapters that are not trained
_NAME = re.compile(r"checkpoint-(\d+)")


def last_good(folder: Path) -> Path | None:
    """Return the latest whole checkpoint in a run's folder; None if there is none."""
    found = [(step, path) for path in folder.glob("checkpoint-*") if (step := step_of(path)) is not None]
    return max(found, default=(0, None))[1]


def step_of(checkpoint: Path) -> int | None:
    """Return a checkpoint's step; None if it is not whole. The trainer's state is written last."""
    name = _NAME.fullmatch(checkpoint.name)
    try:
        step = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return step if name is not None and step == int(name[1]) else None


class WholeCheckpoints(Trainer):
    """Mixin to inherit from before a trainer: `class Online(WholeCheckpoints, GRPOTrainer)`."""

    def _get_output_dir(self, trial: Any) -> str:
        folder = Path(super()._get_output_dir(trial))
        return str(folder / _STAGING if getattr(self, "_saving", False) else folder)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        with written_together(folder / f"checkpoint-{self.state.global_step}") as staged:
            self._saving = True
            try:
                super()._save_checkpoint(model, trial)
                if self.args.should_save:
                    self.save_with(staged)
            finally:
                self._saving = False
        if self.args.should_save:
            rotate_checkpoints(str(folder), self.args.save_total_limit)

    def save_with(self, checkpoint: Path) -> None:
        """Save the state of a subclass into the checkpoint; nothing by default."""

    def save_policy(self) -> Path:
        """Write the trained model and its tokenizer into the run's folder. Raises StorageError."""
        final = Path(self.args.output_dir) / POLICY
        with written_together(final) as staged, self._whole_weights():
            self.save_model(str(staged))
        return final

    @contextmanager
    def _whole_weights(self) -> Iterator[None]:
        """Have the weights saved as one model, which checkpoints of sharded ones (FSDP) need not be."""
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is None:
            yield
            return
        before = plugin.state_dict_type
        plugin.set_state_dict_type("FULL_STATE_DICT")
        try:
            yield
        finally:
            plugin.set_state_dict_type(before)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save only the adapters that are trained.

        TRL has a second set, of the reference policy, which is recreated from the first policy; if a
        checkpoint has several, transformers resumes without the trained ones.
        """
        super()._save(output_dir, state_dict)
        for second in Path(output_dir or self.args.output_dir).glob(f"{_SECOND}/{ADAPTER_CONFIG_NAME}"):
            shutil.rmtree(second.parent)


@contextmanager
def written_together(final: Path) -> Iterator[Path]:
    """Yield the folder of `written_whole` in every process, each of which writes its part.

    The first process replaces `final` when all are done. Raises StorageError there.
    """
    if is_first():
        with written_whole(final) as staged:
            wait()
            yield staged
            wait()
    else:
        wait()
        yield final.parent / _STAGING / final.name
        wait()
    wait()


@contextmanager
def written_whole(final: Path) -> Iterator[Path]:
    """Yield a folder to write to, which replaces `final` once all of it is on the disk.

    Raises StorageError if it cannot be written; the previous content is kept.
    """
    staged = final.parent / _STAGING / final.name
    try:
        shutil.rmtree(staged.parent, ignore_errors=True)
        staged.mkdir(parents=True)
        yield staged
        for path in sorted(staged.rglob("*")):
            _to_disk(path)
        _replace(staged, final)
    except (OSError, SafetensorError, RuntimeError) as error:
        why = _why(error)
        if why is None:
            raise
        last = last_good(final.parent)
        kept = f"; {last.name} is whole" if last is not None else ""
        raise StorageError(
            f"{final} cannot be written ({why}){kept}",
            "free some space, and give the same command again to resume",
        ) from error
    finally:
        shutil.rmtree(staged.parent, ignore_errors=True)


def _replace(staged: Path, final: Path) -> None:
    if final.exists():
        final.rename(staged.with_name(f"{final.name}.before"))  # goes with the folder it is in now
    staged.rename(final)
    _to_disk(final.parent)


def _to_disk(path: Path) -> None:
    found = os.open(path, os.O_RDONLY)
    try:
        os.fsync(found)
    finally:
        os.close(found)


def _why(error: Exception) -> str | None:
    """Return the reason a write failed; None for any other error."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, SafetensorError):
        return str(error).rpartition("I/O error: ")[2]
    # torch.save says what it was at, not what was in its way.
    return "torch could not write the whole file" if "inline_container" in str(error) else None
