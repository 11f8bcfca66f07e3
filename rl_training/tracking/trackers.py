"""TensorBoard, trackio and W&B, through transformers' `report_to`, with files in the training's folder."""

import os
import sys
from enum import StrEnum
from pathlib import Path

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError

PROJECT = "kernelwright"


class Tracking(StrEnum):
    none = "none"
    tensorboard = "tensorboard"
    trackio = "trackio"
    wandb = "wandb"


def reporting(tracking: Tracking, folder: Path) -> dict[str, str]:
    """Return the arguments for TrainingArguments; call it before creating a trainer.

    trackio needs no network: it keeps a database in $TRACKIO_DIR, which is set to FOLDER/trackio if it is not
    already set. `TRACKIO_DIR=FOLDER/trackio trackio show` shows it. W&B sends what it has to its service, but
    for WANDB_MODE=offline. Raises MissingPrerequisite, UsageError.
    """
    if tracking is Tracking.none:
        return {"report_to": "none"}
    _require(tracking)
    if tracking is Tracking.tensorboard:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "tensorboard")
        return {"report_to": "tensorboard"}
    if tracking is Tracking.wandb:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_PROJECT", PROJECT)
        os.environ["WANDB_DIR"] = str(folder.resolve())
        return {"report_to": "wandb", "run_name": folder.resolve().name}
    _trackio_in(folder / "trackio")
    return {"report_to": "trackio", "project": PROJECT, "run_name": folder.resolve().name}


def _require(tracking: Tracking) -> None:
    # Not imported: trackio fixes where it writes when it is.
    from importlib.util import find_spec

    if find_spec(tracking.value) is None:
        raise MissingPrerequisite(
            f"--tracking {tracking.value} needs the package {tracking.value}",
            f"pip install {tracking.value}, or --tracking none",
        )


def _trackio_in(folder: Path) -> None:
    wanted = os.environ.setdefault("TRACKIO_DIR", str(folder.resolve()))
    loaded = sys.modules.get("trackio.utils")
    if loaded is not None and Path(wanted) != loaded.TRACKIO_DIR:
        raise UsageError(
            f"trackio writes to {loaded.TRACKIO_DIR} in this process",
            "start another process for this training",
        )
