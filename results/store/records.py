"""Records of the run database for other packages: frozen, typed, validated."""

from enum import StrEnum

from pydantic import JsonValue

from kernelwright.kernelbench.records import Advice, Candidate, Environment, Evaluation, Record, Target, Task
from kernelwright.profiling.records import Profile


class TaskState(StrEnum):
    pending = "pending"
    done = "done"


class RecordedRun(Record):
    """One run: its command, start, settings and machine."""

    id: str
    started: str  # ISO 8601, UTC
    command: str  # the command line that reproduces it
    settings: dict[str, JsonValue]
    kernelwright: str  # the version that wrote it
    target: Target
    environment: Environment | None


class TaskRun(Record):
    """One task of a run and its progress."""

    task: Task
    state: TaskState
    stop_reason: str | None  # None while pending
    measures_nothing: bool  # the reference can be beaten without doing its work
    measures_nothing_why: str
    audit: str  # what the audit of the reference found, for people
    lessons: dict[str, tuple[str, ...]]  # what models were told of other tasks' kernels, at each occasion


class RecordedAttempt(Record):
    """One candidate of one round with its evaluation and profile."""

    id: int
    task: str
    round: int
    confirms: bool  # measures the winner of the earlier rounds once more
    candidate: Candidate
    advice: Advice | None  # that led to the candidate
    evaluation: Evaluation
    profile: Profile | None


class LlmCall(Record):
    """One request to a model and its answer, in full, so that a run can be read and replayed."""

    task: str | None  # None: a call that serves the run, not one task
    role: str  # "coder", "judge", "agent"
    model: str
    request_sha256: str
    request: JsonValue
    response: JsonValue
    prompt_tokens: int
    completion_tokens: int
    usd: float | None  # None: the price of this model is not known
    seconds: float
