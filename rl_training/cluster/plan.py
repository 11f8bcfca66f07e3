"""Plan of a training: the options of `kernelwright train verl`, and the valid combinations."""

from typing import Literal

from pydantic import Field, PositiveInt

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record

Algorithm = Literal["grpo", "rloo", "remax", "dapo"]
Engine = Literal["vllm", "sglang"]
TASKS = 8  # a step, by default, as in Kevin (arXiv:2507.11948); the samples of a task, too
SAMPLES = 16
STALENESS = 2


class ClusterPlan(Record):
    algorithm: Algorithm
    model: str
    engine: Engine = "vllm"
    nodes: PositiveInt = 1
    gpus: PositiveInt = 8  # of a node
    rollout_nodes: PositiveInt | None = None  # beside `nodes`, with as many GPUs, for rollouts alone
    tasks: PositiveInt = TASKS  # a step
    samples: PositiveInt | None = None  # of a task; None: SAMPLES, for ReMax 1
    turns: PositiveInt = 1
    fully_async: bool = False
    partial_rollouts: bool = False
    staleness: int | None = Field(default=None)  # steps that a sample may lag behind
    prompt_tokens: PositiveInt = 8192
    response_tokens: PositiveInt = 8192
    steps: PositiveInt = 100

    @property
    def trainer(self) -> Literal["sync", "colocate_async", "separate_async"]:
        """Mode of verl's trainer: the last two interrupt rollouts when weights change, and resume them."""
        if self.fully_async:
            return "separate_async"
        return "colocate_async" if self.partial_rollouts else "sync"

    @property
    def own_loop(self) -> bool:
        """True to run this package's agent loop, False for verl's with one turn and the reward function."""
        return self.turns > 1 or self.algorithm == "remax"

    @property
    def group(self) -> int:
        """Number of samples of a task."""
        return self.samples or (1 if self.algorithm == "remax" else SAMPLES)

    @property
    def lag(self) -> int:
        return STALENESS if self.staleness is None else self.staleness

    def check(self, tasks: int) -> None:
        """Check the plan for a data set of `tasks` tasks. Raises UsageError."""
        if self.staleness is not None and self.trainer == "sync":
            raise UsageError(
                "--staleness needs asynchronous training",
                "add --fully-async or --partial-rollouts, or leave out --staleness",
            )
        if self.staleness is not None and self.staleness < 1:
            raise UsageError(
                f"invalid --staleness {self.staleness}: it would discard all rollouts generated ahead",
                "use 1 or more, or train synchronously",
            )
        if self.rollout_nodes is not None and not self.fully_async:
            raise UsageError(
                "--rollout-nodes needs --fully-async",
                "add --fully-async, or leave out --rollout-nodes",
            )
        if self.algorithm == "remax" and self.turns > 1:
            raise UsageError(
                "--algorithm remax supports only one turn: its baseline is a greedy reply to the same prompt",
                "leave out --turns, or use rloo",
            )
        if self.algorithm != "remax" and self.group < 2:
            raise UsageError(
                f"--algorithm {self.algorithm} compares the samples of a task, so it needs several",
                "use --samples 2 or more, or remax",
            )
        if self.tasks > tasks:
            raise UsageError(
                f"the data set has {tasks} tasks for training, a step needs {self.tasks}",
                f"use --tasks-per-step {tasks} or less, or more data",
            )
