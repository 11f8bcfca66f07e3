"""Training of a policy of schedules on a simulated landscape, whose best schedules are known.

The trainer, the network, the grammar and the rewards are those of the demo; only times are simulated. What is
compared is the shape of what two estimators learn: nothing here says how fast anything is.
"""

import math
from pathlib import Path

import pytest

pytest.importorskip("trl")
import torch

from kernelwright.agent.tuner.policy import network
from kernelwright.rl_training.demo.policy import sampled
from kernelwright.rl_training.demo.settings import AFRESH, ONCE
from kernelwright.rl_training.demo.wide.form import ScheduleLines
from kernelwright.rl_training.demo.wide.settings import REWARD, WideSettings
from kernelwright.rl_training.demo.wide.tasks import WideTasks, tasks_of
from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.trainers import online_run
from kernelwright.rl_training.trainers.policy import load_policy
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import WORK
from tests.helpers.rl_training.simulated_times import SimulatedPool, simulated_speedup

pytestmark = [pytest.mark.slow, pytest.mark.training, pytest.mark.timeout(1800)]
SETTINGS = WideSettings(data_seed=100, known_tasks=32, held_tasks=12, suite_tasks=0)
SEED = 100
_DRAWN = 16


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> WideTasks:
    network.register()
    return tasks_of(SETTINGS, tmp_path_factory.mktemp("tasks"), print)


def trained(tasks: WideTasks, settings: WideSettings, out: Path) -> Path:
    """Train a policy on the simulated landscape by the demo's settings, and return its folder."""
    spaces = {each.task.id: each.space for each in tasks.all}
    form = ScheduleLines(spaces, tasks.words)
    network.begin(tasks.words.known, out / "begun", settings.layers, settings.width, SEED)
    rewarded = tasks.of("rewarded")
    data = [TaskData(task=t.task, language="cpp", target=run_factory.TARGET, work=WORK) for t in rewarded]
    grader = Grader(SimulatedPool(spaces), REWARD, ONCE, AFRESH, form=form)
    chosen = settings.online(str(out / "begun"), SEED, tasks.longest)
    return online_run.train(
        lambda: load_policy(chosen.model),
        lambda: TrainingEnvironment({each.task.id: each for each in data}, grader),
        data,
        chosen,
        out / "rl",
    ).policy


def best_of(tasks: WideTasks, folder: Path) -> dict[int, float]:
    """Return n -> the geometric mean over held-out tasks of the best of n, without noise; 0: distinct files."""
    policy, form = load_policy(str(folder)), ScheduleLines({}, tasks.words)
    logs: dict[int, list[float]] = {1: [], 4: [], 16: []}
    distinct = 0
    for task in tasks.of("held out"):
        torch.manual_seed(SEED)
        prompt = [{"role": "user", "content": form.words.prompt(task.space)}]
        made = [task.space.candidate(line) for line in sampled(policy, prompt, _DRAWN, tasks.longest)]
        found = [math.log(simulated_speedup(task.space, each)) for each in made]
        distinct += len({each.sha256 for each in made})
        for n, values in logs.items():
            values += [max(found[at : at + n]) for at in range(0, _DRAWN, n)]
    return {0: distinct / _DRAWN / len(tasks.of("held out"))} | {
        n: math.exp(math.fsum(values) / len(values)) for n, values in logs.items()
    }


def test_the_best_of_k_keeps_the_spread_that_the_mean_gives_up(tasks: WideTasks, tmp_path: Path) -> None:
    begun = tmp_path / "untrained"
    network.begin(tasks.words.known, begun, SETTINGS.layers, SETTINGS.width, SEED)
    random, best, mean = (
        best_of(tasks, folder)
        for folder in (
            begun,
            trained(tasks, SETTINGS, tmp_path / "best"),
            trained(tasks, SETTINGS.model_copy(update={"estimator": "dr_grpo"}), tmp_path / "mean"),
        )
    )
    assert best[1] > 1.2 * random[1] and mean[1] > 1.2 * random[1], (random, best, mean)  # both learn
    assert best[4] > random[16], (random, best)  # four replies are worth more than sixteen random ones
    assert best[16] / best[1] > mean[16] / mean[1], (best, mean)
    assert best[0] > mean[0], (best, mean)  # distinct files
