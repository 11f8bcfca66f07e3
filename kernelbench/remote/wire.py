"""Records between a server of evaluations and its clients, as JSON.

What is unknown is null: an evaluation without a verdict, because the server's own machinery failed, has no
reward, which is not a reward of 0.
"""

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    PositiveInt,
    StringConstraints,
    model_validator,
)

from kernelwright.kernelbench.evaluator import Effort, Measurement, Protocol
from kernelwright.kernelbench.records import (
    Environment,
    Evaluation,
    Fingerprint,
    Language,
    Precision,
    Record,
    Size,
    Speedup,
    Target,
    Task,
    Verdict,
)

API = 1  # of these records and routes; a client and a server of different ones do not work together
_ID = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000_000)]
_MOST_OF_A_REPLY = 1_000_000  # characters, which no file takes: what comes after is not kept


def _cut(reply: str) -> str:
    return reply[:_MOST_OF_A_REPLY]


# A model's own words, which may be nothing or have no end: that earns what a reply without a file earns.
Reply = Annotated[str, AfterValidator(_cut)]
EffortOf = Literal["quick", "full", "thorough"]
State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")
# Why there is no verdict: the server's machinery, the time for it, the task itself, or whoever asked.
NoVerdictCause = Literal["evaluator", "patience", "task", "cancelled"]


class SentTask(Record):
    """A task by its text, or one of the server's with constants set."""

    name: _ID  # its id; without a source that of a task of the server's
    source: Text | None = None  # in KernelBench format
    constants: dict[str, str] = Field(default_factory=dict, alias="set")  # constant -> Python literal
    precision: Precision = Precision.task
    level: int = 0
    workload: tuple[Size, ...] = Field(default=(), max_length=100)

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return what a server needs of a task, whose constants are in its text."""
        return cls(
            name=task.id,
            source=task.source,
            precision=task.precision,
            level=task.level,
            workload=task.workload,
        )


class EvaluationRequest(Record):
    """A candidate to evaluate: a file, or a model's reply with a file in it."""

    task: _ID | SentTask
    source: Text | None = None
    reply: Reply | None = None
    language: Language | None = None  # that the candidate must be in; None: any
    effort: EffortOf | Effort | None = None  # None: the server's own, or that of rewards with a scheme
    baselines: tuple[Literal["eager", "compile", "max-autotune", "cuda-graphs", "traffic"], ...] | None = None
    scheme: Annotated[str, StringConstraints(max_length=100)] | dict[str, JsonValue] | None = None
    to_beat: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # see `Measurement`
    operators: bool = False
    timed: bool = True
    key: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    """Names this request: sent twice with one key, it is one evaluation."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.source is None) == (self.reply is None):
            raise ValueError("give either source or reply")
        own = self.baselines or self.to_beat is not None or self.operators or not self.timed
        if self.scheme is not None and own:
            raise ValueError("a scheme says itself what is timed: leave out the others, or the scheme")
        return self

    def measurement(self, baselines: tuple[str, ...], effort: Effort | None) -> Measurement:
        """Return the timing that is asked for; `baselines` and `effort` where it does not say."""
        return Measurement(
            baselines=tuple(self.baselines or baselines),
            effort=effort,
            to_beat=self.to_beat,
            operators=self.operators,
            timed=self.timed,
        )


class ProfileRequest(Record):
    """A candidate that was evaluated, for profilers to read. `known`: its profile so far, as JSON."""

    task: SentTask
    source: Text
    language: Language
    schedule: dict[str, str] = Field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    evaluation: Evaluation
    known: str | None = None
    closely: bool = False  # with profilers that take minutes


class StageSeconds(Record):
    """Seconds that an evaluation waited and took."""

    queue: float
    build: float
    verify: float
    time: float


class TargetMachine(Record):
    """The machine of a result; results of different ones are not to be compared."""

    device: str
    fingerprint: Fingerprint


class EvaluationResult(Record):
    """State of an evaluation, and what came of it.

    `cached`: an earlier evaluation of the same candidate and task was taken. `evaluation`: the whole record,
    where it was asked for.
    """

    id: str
    state: State
    task: str
    candidate: str | None = None  # sha256 of the file
    verdict: Verdict | None = None
    reason: str = ""
    no_verdict: NoVerdictCause | None = None
    reward: float | None = None
    terms: dict[str, float] = Field(default_factory=dict)  # that the reward is the sum of
    speedup: Speedup | None = None
    own_kernel_share: float | None = None
    seconds: StageSeconds | None = None
    target: TargetMachine
    cached: bool = False
    evaluation: Evaluation | None = None


class BatchRequest(Record):
    evaluations: tuple[EvaluationRequest, ...] = Field(min_length=1, max_length=1024)


class BatchResult(Record):
    """State of a batch: `done` once all its evaluations have ended."""

    id: str
    state: Literal["running", "done"]
    counts: dict[State, int]
    evaluations: tuple[EvaluationResult, ...]


class ServerHealth(Record):
    """Public state of a server."""

    status: Literal["ok"] = "ok"
    api: int = API
    version: str  # of kernelwright


class ServerInfo(Record):
    """Facts that a client must know of a server.

    `slots`: evaluations under way at a time; `queue`: evaluations that may wait.
    """

    api: int = API
    version: str
    target: Target
    environment: Environment
    protocol: Protocol
    slots: PositiveInt
    queue: PositiveInt


class ServedTask(Record):
    """A task that a server evaluates by its name."""

    id: str
    level: int
    sha256: str


class TaskList(Record):
    """Tasks of a server. `any_source`: it also evaluates tasks whose text is sent."""

    any_source: bool
    tasks: tuple[ServedTask, ...]


class Problem(Record):
    """An error, with what to do about it."""

    error: str
    fix: str
