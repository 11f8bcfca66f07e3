"""The demo over the wide space: the claim, the methods that all seeds share, each seed, and the analysis.

Contents of the folder: `claim.json` and `claim.md`, written before anything is tried; `tasks.json`;
`evaluations.jsonl` (each measured kernel) and `results.jsonl` (each method's candidates for a task), by which
a killed demo goes on; `seed-N/begun` and `seed-N/rl` (a training, for `kernelwright report`); at the end
`table.md` and `curves.svg`.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.tuner.policy import network
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.machine import cache_folder, physical_threads
from kernelwright.kernelbench.records import Candidate, Target, Work
from kernelwright.rl_training.demo.online import trained
from kernelwright.rl_training.demo.policy import sampled
from kernelwright.rl_training.demo.settings import AFRESH, ONCE
from kernelwright.rl_training.demo.trial import outcome
from kernelwright.rl_training.demo.wide.claim import CHANCE, POLICY, SEARCH, VALUE, PolicyClaim, registered
from kernelwright.rl_training.demo.wide.form import ScheduleLines
from kernelwright.rl_training.demo.wide.search import searched
from kernelwright.rl_training.demo.wide.settings import REWARD, WideSettings
from kernelwright.rl_training.demo.wide.tasks import LANGUAGE, WideTask, WideTasks, tasks_of
from kernelwright.rl_training.demo.wide.trial import SHARED, ResultsFile, WideResult, WideTrial
from kernelwright.rl_training.environment.grader import Grader, Pool
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.measured import MeasuredPool
from kernelwright.rl_training.rewards.remeasure import Doubt
from kernelwright.rl_training.rewards.reward_input import RewardInput
from kernelwright.rl_training.trainers.checkpoints import POLICY as POLICY_FOLDER
from kernelwright.rl_training.trainers.policy import Policy, load_policy

Say = Callable[[str], None]
_NO_WORK = Work(input_bytes=0, weight_bytes=0, output_bytes=0, flops=0)  # no prompt of this demo says it


@dataclass(frozen=True)
class WideDemo:
    """The demo; progress messages go to `say`."""

    settings: WideSettings
    out: Path
    say: Say

    @cached_property
    def tasks(self) -> WideTasks:
        return tasks_of(self.settings, self.out, self.say)

    @cached_property
    def form(self) -> ScheduleLines:
        spaces = {each.task.id: each.space for each in self.tasks.all}
        return ScheduleLines(spaces, self.tasks.words)

    @property
    def tried(self) -> list[WideTask]:
        return [*self.tasks.of("held out"), *self.tasks.of("suite")]

    def run(self) -> tuple[PolicyClaim, list[WideResult]]:
        """Run it on this machine's evaluator."""
        with Referee.start(cache=cache_folder()) as evaluator, ProfilingPool(evaluator) as pool:
            return self.on(pool, evaluator.target)

    def on(self, pool: Pool, target: Target) -> tuple[PolicyClaim, list[WideResult]]:
        """Run it on a pool of evaluations, or resume it."""
        network.register()
        self.out.mkdir(parents=True, exist_ok=True)
        claim = registered(self.settings, self.out)
        counts = ", ".join(f"{len(self.tasks.of(kind))} {kind}" for kind in ("rewarded", "held out", "suite"))
        self.say(f"tasks: {counts}")
        measured = MeasuredPool(pool, self.out / "evaluations.jsonl")
        results = ResultsFile(self.out / "results.jsonl", claim.sha256)
        self._shared(measured, results)
        first = self.settings.first_seed
        for seed in range(first, first + self.settings.seeds):
            self._seed(seed, target, measured, results)
        return claim, results.all

    def _shared(self, pool: MeasuredPool, results: ResultsFile) -> None:
        """Try what has no seed: random schedules, and the builtin coder's own search."""
        settings, most = self.settings, max(self.settings.equal, *self.settings.tries)
        tries = (*settings.tries, settings.equal)
        self.say(f"random schedules: {len(self.tried)} tasks, {most} each")
        trial = WideTrial(pool)
        for task in self.tried:
            results.keep(trial, CHANCE, SHARED, task, tries, partial(self._by_chance, task, most))
        self.say(f"the builtin coder's search: {len(self.tried)} tasks, {settings.equal} evaluations each")

        def search(task: WideTask) -> None:
            made = partial(searched, task, pool, LANGUAGE, settings.equal)
            results.keep(trial, SEARCH, SHARED, task, (settings.claimed, settings.equal), made)

        with ThreadPoolExecutor(physical_threads()) as threads:  # a step of each waits for the one before
            list(threads.map(search, self.tried))

    def _by_chance(self, task: WideTask, count: int) -> list[Candidate]:
        rng = random.Random(f"{self.settings.data_seed} {task.task.id}")
        return [task.space.candidate(task.space.draw(rng)) for _ in range(count)]

    def _seed(self, seed: int, target: Target, pool: MeasuredPool, results: ResultsFile) -> None:
        folder, settings, tries = self.out / f"seed-{seed}", self.settings, self.settings.tries
        policy = load_policy(str(self._trained(seed, target, pool, folder)))
        self.say(f"seed {seed}: trial of the policy, {len(self.tried)} tasks, {max(tries)} lines each")
        trial = WideTrial(pool)
        for task in self.tried:
            lines = partial(self._lines, policy, task, seed)
            results.keep(trial, POLICY, seed, task, tries, lines)
        from kernelwright.rl_training.demo.wide.value import ScoredLine, fitted

        examples = [
            ScoredLine(self.form.prompt(task.task.id), line, reward)
            for task, line, reward in self._rewarded_by_chance(seed, pool)
        ]
        model = fitted(
            examples, policy.tokenizer, settings.layers, settings.width, settings.value_passes, seed
        )

        def ranked(task: WideTask) -> list[Candidate]:
            rng = random.Random(f"{seed} {task.task.id}")
            drawn = list(dict.fromkeys(task.space.draw(rng) for _ in range(settings.ranked)))
            worth = model.predictions(self.form.prompt(task.task.id), drawn)
            order = sorted(range(len(drawn)), key=lambda place: -worth[place])
            return [task.space.candidate(drawn[place]) for place in order[: settings.claimed]]

        self.say(f"seed {seed}: trial of the value model")
        for task in self.tried:
            results.keep(trial, VALUE, seed, task, (1, settings.claimed), partial(ranked, task))

    def _trained(self, seed: int, target: Target, pool: MeasuredPool, folder: Path) -> Path:
        """Train a policy, with the code of `train rl`. Resumes one that was interrupted."""
        settings = self.settings
        if (folder / "rl" / POLICY_FOLDER).exists():
            return folder / "rl" / POLICY_FOLDER
        begun = folder / "begun"
        if not (begun / "tokenizer.json").exists():
            network.begin(self.tasks.words.known, begun, settings.layers, settings.width, seed)
        self.say(f"seed {seed}: RL with measured speedups, {settings.evaluations} replies")
        data = [
            TaskData(task=each.task, language="cpp", target=target, work=_NO_WORK)
            for each in self.tasks.of("rewarded")
        ]
        grader = Grader(pool, REWARD, ONCE, AFRESH, doubt=Doubt(over_eager=20.0), form=self.form)
        chosen = settings.online(str(begun), seed, self.tasks.longest)
        return trained(chosen, data, grader, folder / "rl")

    def _lines(self, policy: Policy, task: WideTask, seed: int) -> list[Candidate]:
        prompt = [{"role": "user", "content": self.form.prompt(task.task.id)}]
        longest, most = self.tasks.longest, max(self.settings.tries)
        torch.manual_seed(seed)  # of each task, so that a resumed trial draws the same
        return [task.space.candidate(line) for line in sampled(policy, prompt, most, longest)]

    def _rewarded_by_chance(self, seed: int, pool: MeasuredPool) -> list[tuple[WideTask, str, float]]:
        """Return random schedules of the rewarded tasks with their rewards, as many as a training has."""
        settings = self.settings
        rng = random.Random(f"value {seed}")
        rewarded = self.tasks.of("rewarded")
        order: list[WideTask] = []
        while len(order) < settings.evaluations // settings.group:
            order += rng.sample(rewarded, len(rewarded))
        groups = order[: settings.evaluations // settings.group]
        drawn = [(task, task.space.draw(rng)) for task in groups for _ in range(settings.group)]
        self.say(f"seed {seed}: random schedules for the value model, {len(drawn)}")
        trial = WideTrial(pool)
        found = []
        for begin in range(0, len(drawn), settings.batch):
            some = drawn[begin : begin + settings.batch]
            asked = [trial.once(task, task.space.candidate(line)) for task, line in some]
            for (task, line), future in zip(some, asked, strict=True):
                seen = outcome(future)
                reward = REWARD(RewardInput(seen, "")).value if seen is not None else None
                if reward is not None:
                    found.append((task, line, reward))
        return found
