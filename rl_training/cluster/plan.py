"""What is to be trained, and how: the options of `kernelwright train verl`, and which go together."""

from typing import Literal

from pydantic import Field, PositiveInt

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record

Algorithm = Literal["grpo", "rloo", "remax", "dapo"]
Engine = Literal["vllm", "sglang"]
TASKS = 8  # a step, by default, as in Kevin (arXiv:2507.11948); the samples of a task, too
SAMPLES = 16
STALENESS = 2


class Plan(Record):
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
        """verl's mode: the last two interrupt rollouts when weights change, and go on with them."""
        if self.fully_async:
            return "separate_async"
        return "colocate_async" if self.partial_rollouts else "sync"

    @property
    def own_loop(self) -> bool:
        """Whether our agent loop runs, or else verl's for one turn, with the reward function."""
        return self.turns > 1 or self.algorithm == "remax"

    @property
    def group(self) -> int:
        """Samples of a task."""
        return self.samples or (1 if self.algorithm == "remax" else SAMPLES)

    @property
    def lag(self) -> int:
        return STALENESS if self.staleness is None else self.staleness

    def check(self, tasks: int) -> None:
        """For a data set of so many tasks. Raises UsageError."""
        if self.staleness is not None and self.trainer == "sync":
            raise UsageError(
                "--staleness bounds what asynchronous training lags behind, and this is synchronous",
                "add --fully-async or --partial-rollouts, or leave it out",
            )
        if self.staleness is not None and self.staleness < 1:
            raise UsageError(
                f"--staleness {self.staleness} would throw away all that is generated ahead",
                "give at least 1, or train synchronously",
            )
        if self.rollout_nodes is not None and not self.fully_async:
            raise UsageError(
                "--rollout-nodes are for rollouts beside training, which --fully-async has alone",
                "add --fully-async, or leave it out",
            )
        if self.algorithm == "remax" and self.turns > 1:
            raise UsageError(
                "--algorithm remax is for one turn: its baseline is a greedy reply to the same prompt",
                "leave out --turns, or take rloo",
            )
        if self.algorithm != "remax" and self.group < 2:
            raise UsageError(
                f"--algorithm {self.algorithm} holds the samples of a task against each other",
                "give --samples 2 at least, or take remax",
            )
        if self.tasks > tasks:
            raise UsageError(
                f"the data set has {tasks} tasks for training, a step needs {self.tasks}",
                f"give --tasks-per-step {tasks} at most, or more data",
            )
