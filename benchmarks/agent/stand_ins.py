"""Stand-ins for a language model and a GPU: tokens as measured, outcomes of rounds by a stated model.

The result of each round of a task follows from a seed, the task and the best kernel so far, so that it is the
same whatever other tasks have had before.
"""

import json
import math
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kernelwright.agent.llm.endpoint.prices import Price
from kernelwright.agent.llm.model import Completion, ModelCall, Usage, estimated_tokens
from kernelwright.kernelbench.evaluator import TimingLock
from kernelwright.kernelbench.operator_families import operator_families
from kernelwright.kernelbench.records import (
    Candidate,
    Ceilings,
    Environment,
    Evaluation,
    Fingerprint,
    Interval,
    Speedup,
    Stages,
    Target,
    Task,
    Timing,
    Verdict,
    Work,
)
from kernelwright.kernelbench.speed_of_light import floor_us
from kernelwright.profiling.records import Profile
from kernelwright.profiling.roofline import roofline

PRICE = Price(prompt=2.0, cached_prompt=0.1, completion=10.0)
_CACHED_FROM = 1024  # tokens of a first message that providers cache
_CODE = (1200, 0.66)  # tokens of a file: median and spread of the logarithm; 90% are below 2800
_THOUGHT = {"coder": (8000, 0.5), "judge": (3000, 0.5)}  # at medium effort: mean and spread
_ADVICE = 300
_TOKENS_S = 150.0
EVALUATION_S = 8.0

_FLOOR_US = 100.0
_LIBRARY = frozenset(
    {"product", "convolution", "attention", "recurrence"}
)  # left to cuBLAS and cuDNN by eager
# Shares of the roofline that eager reaches, least and most: where a library does it, else by level.
_SHARES = {"library": (0.55, 1.0), 1: (0.25, 0.95), 2: (0.1, 0.6), 3: (0.15, 0.6)}
_CORRECT = {1: 0.75, 2: 0.65, 3: 0.45}  # mean probability that a file is
_ALIKE = 6.0  # concentration of the tasks around it
_SLOWER = {"library": 1.0, "other": 0.4}  # that a first kernel is below what it might be, in logarithms
_FASTER = 0.5  # probability that a change of a correct kernel makes it faster

TARGET = Target(
    device="cuda:0",
    languages=("cuda",),
    ceilings=Ceilings(
        copy_bytes_s=2.9e12, cached_copy_bytes_s=6e12, fp32_flops_s=5.1e13, bf16_flops_s=6.5e14
    ),
    fingerprint=Fingerprint(
        chip="simulated GPU", threads=1, memory_bytes=80 << 30, last_level_cache_bytes=50 << 20, system="",
        python="", torch="", compiler="",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Nature:
    """Truth about a task, which nobody is told. `reach`: logarithm of the best speedup that there is."""

    share: float  # of the roofline, that eager reaches
    reach: float
    correct: float  # probability
    slower: float

    @classmethod
    def of(cls, task: Task, seed: int) -> "Nature":
        chance = Random(f"{seed} {task.id}")
        library = task.level == 1 and bool(operator_families(task) & _LIBRARY)
        share = chance.uniform(*_SHARES["library" if library else task.level])
        mean = _CORRECT[task.level]
        return cls(
            share=share,
            reach=-math.log(share) * chance.betavariate(3, 2),
            correct=chance.betavariate(_ALIKE * mean, _ALIKE * (1 - mean)),
            slower=_SLOWER["library" if library else "other"],
        )

    def speed(self, best: float | None, chance: Random) -> float | None:
        """Return the logarithm of the speedup of the next kernel, after the `best` one; None: it fails."""
        if chance.random() > self.correct:
            return None
        if best is None:
            return self.reach * chance.betavariate(2, 3) - chance.expovariate(1 / self.slower)
        if self.reach > best and chance.random() < _FASTER:
            return best + (self.reach - best) * chance.betavariate(2, 3)
        return best - chance.expovariate(5.0)


@dataclass
class StandInModel:
    """A ChatModel. `seconds`: that its answers on each task have taken."""

    seed: int
    seconds: dict[str, float] = field(default_factory=dict)

    async def complete(self, call: ModelCall) -> Completion:
        chance = Random(f"{self.seed} {call.sha256}")
        mean, spread = _THOUGHT[call.role]
        thought = int(chance.lognormvariate(math.log(mean) - spread**2 / 2, spread))
        written = (
            _ADVICE if call.role == "judge" else int(chance.lognormvariate(math.log(_CODE[0]), _CODE[1]))
        )
        prompts = [estimated_tokens(message.content) for message in call.messages]
        cached = prompts[0] if prompts[0] >= _CACHED_FROM else 0
        took_s = (thought + written) / _TOKENS_S
        assert call.task is not None
        self.seconds[call.task] = self.seconds.get(call.task, 0.0) + took_s
        return Completion(
            text=_file(call.sample, written) if call.role == "coder" else _advice(call),
            finish="stop",
            usage=Usage(
                prompt_tokens=sum(prompts), completion_tokens=thought + written, cached_tokens=cached
            ),
            seconds=took_s,
        )


def _file(number: int, tokens: int) -> str:
    """Return a file of a round, as long as one with so many tokens."""
    kernel = "from kernelwright import jit\nlib = jit.compile_cuda('')\nclass ModelNew:\n"
    lines = "# a line of a kernel\n" * (tokens // 6)
    return f"```python\n{kernel}    number = {number}\n{lines}```"


def _advice(call: ModelCall) -> str:
    if "minimal_fix" in json.dumps(call.reply_schema):
        return json.dumps({"critical_issue": "i", "why": "w", "minimal_fix": "f"})
    fields = {"bottleneck": "b", "technique": "other", "method": "m", "plan": "p", "evidence": []}
    return json.dumps({**fields, "predicted_gain": 1.2})


class StandInPool:
    """A ProfilingPool that evaluates by what is true of each task. `evaluated`: how often it has each."""

    slots = 1

    def __init__(self, natures: Mapping[str, Nature], seed: int) -> None:
        self.target, self.timing_lock = TARGET, TimingLock()
        self._natures, self._seed = natures, seed
        self._best: dict[str, float] = {}
        self._known: dict[tuple[str, str], float | None] = {}
        self.evaluated: dict[str, int] = {}

    def audit(self, task: Task) -> list[str]:
        return []

    def work(self, task: Task) -> Work:
        moved = int(_FLOOR_US * 1e-6 * (TARGET.ceilings.copy_bytes_s or 0))
        return Work(input_bytes=moved // 2, weight_bytes=0, output_bytes=moved // 2, flops=0)

    def eager_share(self, task: Task) -> float | None:
        self.evaluated[task.id] = self.evaluated.get(task.id, 0) + 1
        return self._natures[task.id].share

    def evaluate(self, task: Task, candidate: Candidate, *_: object) -> Evaluation:
        self.evaluated[task.id] = self.evaluated.get(task.id, 0) + 1
        key = task.id, candidate.sha256
        if key not in self._known:
            chance = Random(f"{self._seed} {task.id} {len([k for k in self._known if k[0] == task.id])}")
            best = self._best.get(task.id)
            self._known[key] = speed = self._natures[task.id].speed(best, chance)
            if speed is not None:
                self._best[task.id] = max(speed, best if best is not None else speed)
        speed = self._known[key]
        if speed is None:
            return _evaluation(task, candidate, Verdict.wrong_output)
        took = _FLOOR_US / self._natures[task.id].share / math.exp(speed)
        floor = floor_us(self.work(task), self.target.ceilings)
        timing = Timing(candidate_us=_around(took), floor_us=floor, calls_per_block=1, rounds=1)
        return _evaluation(task, candidate, Verdict.correct, timing, Speedup(eager=_around(math.exp(speed))))

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return _evaluation(task, candidate, Verdict.build_error)

    def profile(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, *_: object, **__: object
    ) -> Profile | None:
        return roofline(self.work(task), evaluation.target, evaluation)

    def ask(self, task: Task, do: object, client: str) -> Future[Any]:
        raise AssertionError("the builtin coder is not asked")

    def abort(self) -> None:
        """Nothing is under way."""


def _around(value: float) -> Interval:
    return Interval(median=value, low=0.99 * value, high=1.01 * value)


def _evaluation(
    task: Task,
    candidate: Candidate,
    verdict: Verdict,
    timing: Timing | None = None,
    speedup: Speedup | None = None,
) -> Evaluation:
    return Evaluation(
        task=task.id,
        candidate=candidate.sha256,
        target=TARGET,
        verdict=verdict,
        reason="" if timing is not None else "simulated",
        timing=timing,
        speedup=speedup,
        stages=Stages(total_s=EVALUATION_S if verdict is not Verdict.build_error else 0.0),
        environment=Environment(sandbox=()),
    )
