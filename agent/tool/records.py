"""Answers of the tools: typed, so that a client reads the numbers and not the words."""

from typing import Annotated, Literal

from pydantic import Field

from kernelwright.kernelbench.records import Interval, Language, Record, Verdict

State = Literal["done", "running"]


class FileResult(Record):
    """Result of one file. Times are in µs a call, by the referee's clock; intervals are of 95%."""

    evaluation: Annotated[str, Field(description="Id in the run's database: RUN/ATTEMPT.")]
    task: str
    number: Annotated[int, Field(description="Number of the file in this task.")]
    sha256: str
    verdict: Verdict
    right: Annotated[bool, Field(description="Whether its outputs are right, timed or not.")]
    timed: bool
    reason: Annotated[str, Field(description="Why it is not right; empty if it is.")] = ""
    time_us: Interval | None = None
    baselines_us: dict[str, float] = Field(default_factory=dict)
    speedup: Annotated[dict[str, Interval], Field(description="By baseline.")] = Field(default_factory=dict)
    own_kernel_share: Annotated[float | None, Field(description="Of its time, in its own kernels.")] = None
    roofline_share: Annotated[
        float | None,
        Field(description="Least time at the machine's measured rates over its time, at one size."),
    ] = None
    speed_of_light_score: Annotated[
        float | None,
        Field(description="0.5 for eager's time, 1 for that least time; null: not known, or below it."),
    ] = None
    bottleneck: str = ""
    best: Annotated[int | None, Field(description="Number of the fastest correct file so far.")] = None
    said: Annotated[str, Field(description="All of it in words.")] = ""


class EvaluationAnswer(Record):
    """Answer to check, measure, submit and result: the result, or a ticket to ask `result` for."""

    state: State
    seconds: Annotated[float, Field(description="Since the evaluation was asked for.")]
    ticket: str
    result: FileResult | None = None
    left: Annotated[str, Field(description="What is left of the budget.")] = ""


class TaskDescription(Record):
    """Everything there is to know of a task before the first file."""

    task: str
    tasks: Annotated[tuple[str, ...], Field(description="All tasks of this server.")]
    language: Language
    reference: Annotated[str, Field(description="The PyTorch module whose results count.")]
    sizes: Annotated[str, Field(description="Sizes that count, if there are several.")] = ""
    hardware: tuple[str, ...]
    goal: tuple[str, ...]
    operators: Annotated[str, Field(description="Operators that eager runs, as a table.")] = ""
    tried: Annotated[str, Field(description="Files so far, as a table.")] = ""
    rules: Annotated[str, Field(description="How files are judged.")]
    interface: str
    guide: Annotated[str, Field(description="How kernels of this language are written here.")]
    left: Annotated[str, Field(description="What is left of the budget.")] = ""


class FileProfile(Record):
    """Reading of the profilers of a measured file."""

    task: str
    number: int
    metrics: Annotated[dict[str, float], Field(description="By name, with units in `said`.")]
    said: str


class CompiledKernels(Record):
    """The kernels that kernelwright's own compiler writes for a task."""

    task: str
    said: str


class TaskHistory(Record):
    """All files of a task so far, in the order in which they were evaluated."""

    task: str
    files: tuple[FileResult, ...]
    best: int | None = None
    said: str
