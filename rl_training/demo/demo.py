"""The demo: tasks and samples, SFT, RL, and a trial of each, for several seeds; resumable after a kill.

Contents of the folder: `target.json`, whose measured rates are in prompts, so a resumed demo has the same;
`tasks.json`, the tried tasks also as files in `tasks/rewarded` and `tasks/held`,
`evaluations.jsonl` (each measured kernel), `seed-N/sft` and `seed-N/rl` (trainings, for `kernelwright
report`), `seed-N/tried.json`, and at the end `table.md` and `curves.svg`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.agent.llm.coder import asked_for
from kernelwright.agent.llm.model import Message
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Record, Target
from kernelwright.results.store.folder import write_atomically
from kernelwright.rl_training.demo.data import DemoTask, DemoTasks, tasks_of
from kernelwright.rl_training.demo.online import seconds_of, trained
from kernelwright.rl_training.demo.policy import replies
from kernelwright.rl_training.demo.settings import AFRESH, ONCE, DemoSettings
from kernelwright.rl_training.demo.teaching import BEGUN, SFT, teach
from kernelwright.rl_training.demo.trial import PolicyTrial, Tried, files_of
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.measured import MeasuredPool
from kernelwright.rl_training.rewards import state_io
from kernelwright.rl_training.rewards.remeasure import Doubt
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.trainers.checkpoints import POLICY
from kernelwright.rl_training.trainers.settings import OnlineSettings
from kernelwright.rl_training.trajectory import read

_REWARD = SCHEMES["log-speedup"]
Say = Callable[[str], None]


class Seconds(Record):
    """Wall time of the parts, each from its last start; earlier measurements cost nothing."""

    data: float = 0.0
    sft: float = 0.0
    rl: float = 0.0
    trial: float = 0.0


class Seed(Record):
    """Result of one seed. `evaluations`: distinct kernels that its RL submitted."""

    seed: int
    tried: tuple[Tried, ...]
    evaluations: int
    seconds: Seconds


@dataclass(frozen=True)
class Demo:
    """The demo; progress messages go to `say`."""

    settings: DemoSettings
    out: Path
    say: Say

    def run(self) -> list[Seed]:
        self.out.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        tasks = tasks_of(self.settings, self.out)
        drawing = time.monotonic() - began
        rewarded = tasks.known[: self.settings.rewarded_tasks]
        self.say(
            f"{len(tasks.known)} tasks to learn from, {len(rewarded)} of them rewarded, "
            f"{len(tasks.held)} held out"
        )
        for task in self._tried_tasks(tasks):
            kind = "held" if task.held else "rewarded"
            write_atomically(self.out / "tasks" / kind / f"{task.drawn.name}.py", task.drawn.source)
        with Referee.start(cache=cache_folder()) as evaluator, ProfilingPool(evaluator) as pool:
            measured = MeasuredPool(pool, self.out / "evaluations.jsonl")
            seeds = range(self.settings.first_seed, self.settings.first_seed + self.settings.seeds)
            folders = {seed: self.out / f"seed-{seed}" for seed in seeds}
            target = self._target(evaluator.target)
            teach(folders, self.settings, self.out, target, self.say)
            return [self._seed(seed, tasks, target, measured, drawing) for seed in seeds]

    def _target(self, measured: Target) -> Target:
        """Return the target that prompts tell of: as it was measured when the demo began."""
        path = self.out / "target.json"
        found = state_io.read(path, Target)
        if found is None:
            state_io.write(path, measured)
        return found or measured

    def _tried_tasks(self, tasks: DemoTasks) -> list[DemoTask]:
        return [*tasks.known[: self.settings.tried_tasks], *tasks.held]

    def _seed(self, seed: int, tasks: DemoTasks, target: Target, pool: MeasuredPool, drawing: float) -> Seed:
        folder = self.out / f"seed-{seed}"
        done = state_io.read(folder / "tried.json", Seed)
        if done is not None:
            return done
        rewarded = self._rl(seed, tasks.known[: self.settings.rewarded_tasks], target, pool, folder)
        began = time.monotonic()
        policies = {
            "before SFT": folder / BEGUN,
            "after SFT": folder / SFT / POLICY,
            "after RL": rewarded,
        }
        tried = self._tried(seed, tasks, target, pool, policies)
        seconds = Seconds(
            data=drawing,
            sft=seconds_of(folder / SFT),
            rl=seconds_of(folder / "rl"),
            trial=time.monotonic() - began,
        )
        found = Seed(
            seed=seed,
            tried=tuple(tried),
            evaluations=_submitted(folder / "rl"),
            seconds=seconds,
        )
        state_io.write(folder / "tried.json", found)
        return found

    def _rl(
        self, seed: int, rewarded: Sequence[DemoTask], target: Target, pool: MeasuredPool, folder: Path
    ) -> Path:
        self.say(f"seed {seed}: RL with measured speedups")
        data = [task.data(target) for task in rewarded]
        grader = Grader(pool, _REWARD, effort=ONCE, again=AFRESH, doubt=Doubt(over_eager=20.0))
        chosen = OnlineSettings(
            model=str(folder / SFT / POLICY),
            steps=self.settings.rl_steps,
            learning_rate=self.settings.rl_rate,
            batch=self.settings.batch,
            micro_batch=self.settings.batch,
            group=self.settings.group,
            seed=seed,
            cpu=True,
            save_every=self.settings.rl_save_every,
            reward=_REWARD,
            kl=self.settings.rl_kl,
            max_completion=self.settings.longest,
            top_p=self.settings.top_p,
        )
        return trained(chosen, data, grader, folder / "rl")

    def _tried(
        self, seed: int, tasks: DemoTasks, target: Target, pool: MeasuredPool, policies: dict[str, Path]
    ) -> list[Tried]:
        self.say(f"seed {seed}: trial of policies, random schedules and enumeration")
        trial, most = PolicyTrial(pool, self.settings.tries), max(self.settings.tries)
        chosen = self._tried_tasks(tasks)
        prompts = [[m.model_dump() for m in _first_prompt(task, target)] for task in chosen]
        found: list[Tried] = []
        for name, policy in policies.items():
            said = replies(policy, prompts, most, self.settings, seed)
            found += [
                trial.of(name, seed, task, files_of(texts)) for task, texts in zip(chosen, said, strict=True)
            ]
        for task in chosen:
            every = list(task.schedules.all())[: None if self.settings.every_schedule else most]
            found.append(trial.of("random schedules", seed, task, every))
            found.append(trial.of("enumeration", seed, task, every, in_order=True))
            found.append(PolicyTrial(pool, (len(every),)).of("all schedules", seed, task, every))
        return found


def _first_prompt(task: DemoTask, target: Target) -> tuple[Message, ...]:
    return asked_for(task.data(target).situation, "cpp", (), None).messages


def _submitted(training: Path) -> int:
    """Return the number of distinct files among the replies of a training."""
    steps = sorted((training / "trajectories").glob("*.jsonl"))
    return len(
        {
            (made.task, turn.candidate)
            for path in steps
            for made in read(path)
            for turn in made.turns
            if turn.source
        }
    )
