"""Training of a demo's policy with measured speedups, by the code of `train rl`."""

from collections.abc import Sequence
from pathlib import Path

from kernelwright.results.store.training import Training
from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.tracking.metrics import MetricsFile, ProgressPrinter
from kernelwright.rl_training.tracking.run import tracked
from kernelwright.rl_training.trainers import online_run
from kernelwright.rl_training.trainers.policy import load_policy
from kernelwright.rl_training.trainers.settings import OnlineSettings


def trained(chosen: OnlineSettings, data: Sequence[TaskData], grader: Grader, folder: Path) -> Path:
    """Train the policy `chosen.model` in a folder, or resume that, and return the trained one.

    Raises what `online_run.train` does.
    """
    with tracked(folder, "online", chosen, {"seed": chosen.seed}, {}) as training:
        finished = online_run.train(
            lambda: load_policy(chosen.model),
            lambda: TrainingEnvironment({each.task.id: each for each in data}, grader),
            list(data),
            chosen,
            training.path,
            [MetricsFile(training.path), ProgressPrinter()],
        )
    return finished.policy


def seconds_of(training: Path) -> float:
    """Return the seconds of a training's last start."""
    return Training.read(training).series("train_runtime")[-1][1]
