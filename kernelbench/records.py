"""The records that pass between packages: frozen, typed, versioned, JSON in and out.

A record is written with `record.model_dump_json()` and read with `Class.model_validate_json(text)`. Times are
in µs where the name ends in `_us`, in seconds where it ends in `_s`.
"""

import hashlib
import re
from enum import StrEnum
from typing import Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SCHEMA = 1

# Each has a row in `kernelbench.languages`.
Language = Literal[
    "cpp", "triton", "cuda", "torch", "helion", "gluon", "cute", "cutile", "tilelang", "numba", "cupy",
    "warp", "taichi", "jax", "hip", "thunderkittens",
]  # fmt: skip
# Precision of the operands of matrix products and convolutions. tf32: operands in fp32, rounded to it.
ProductPrecision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
# Those in which a product can be computed without losing any of its operands' bits (of tf32's: that count).
_HELD_BY: dict[ProductPrecision, tuple[ProductPrecision, ...]] = {
    "fp32": ("fp32",),
    "tf32": ("tf32", "fp32"),
    "fp16": ("fp16", "tf32", "fp32"),
    "bf16": ("bf16", "tf32", "fp32"),
    "fp8": ("fp8", "fp16", "bf16", "tf32", "fp32"),
    "int8": ("int8", "fp16", "bf16", "tf32", "fp32"),
}
BUSY = 0.02  # share of the time that threads waited for a CPU, above which a measurement is not believed
_OTHER_DTYPES = re.compile(r"float16|float64|float8|half|double|complex|autocast|default_dtype")
LEAST_OWN = 0.05  # of a candidate's time in kernels of its own, for its speedup to be theirs
TRAFFIC = "traffic"  # the baseline that moves the data and computes nothing


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Precision(StrEnum):
    """Precision of a task's floating-point inputs and weights; `task`: each keeps the task's own dtype."""

    task = "task"
    fp32 = "fp32"
    tf32 = "tf32"
    fp16 = "fp16"
    bf16 = "bf16"


CHECKED = "right, and not timed, as asked"  # how the reason begins where a candidate is only checked


class Verdict(StrEnum):
    correct = "correct"
    build_error = "build_error"
    runtime_error = "runtime_error"
    timeout = "timeout"
    wrong_output = "wrong_output"
    nondeterministic = "nondeterministic"
    cheating = "cheating"
    implausible = "implausible"
    unmeasured = "unmeasured"  # checked as far as this machine can; never a speedup


class PartOf(Record):
    """Place of a task in another one, that it was cut out of."""

    whole: str  # id of that task
    places: tuple[tuple[str, ...], ...]  # each a submodule's path, or those of consecutive ones
    share: float  # of the whole's time in eager, in all places
    is_plain: bool = True  # called with tensors by position, and with nothing else


class Size(Record):
    """One size of a task: values of its axes, which are constants of its file."""

    constants: dict[str, str]  # axis -> Python literal
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # how often it is called
    hidden: bool = False  # from the coder, who is not to specialize a kernel for the sizes that it knows

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.constants.items())


class Task(Record):
    """A PyTorch reference in KernelBench format: `Model`, `get_inputs`, `get_init_inputs`.

    `workload`: the sizes of a task that has several. The first, which is not hidden, is written into `source`
    and is the one that is profiled; no other can be read off `source`.
    """

    id: str  # "builtin:level1/softmax", "kernelbench:2/40", "file:mytask"
    level: int
    source: str  # with the overrides already written in
    overrides: dict[str, str] = Field(default_factory=dict)  # constant -> Python literal
    precision: Precision = Precision.task
    part: PartOf | None = None
    # Left out of JSON where it is empty, as tasks of one size were before there were others.
    workload: tuple[Size, ...] = Field(default=(), exclude_if=lambda sizes: not sizes)

    @property
    def slug(self) -> str:
        """The id as a file name."""
        return "".join(c if c.isalnum() or c in "-." else "_" for c in self.id)

    @property
    def sha256(self) -> str:
        sizes = "".join(f"\n{size.model_dump_json()}" for size in self.workload)
        return hashlib.sha256(f"{self.effective_precision}\n{self.source}{sizes}".encode()).hexdigest()

    @property
    def primary(self) -> "Task":
        """The task at its first size alone; itself if it has one size."""
        return self.model_copy(update={"workload": ()}) if self.workload else self

    @property
    def axes(self) -> tuple[str, ...]:
        """The constants that differ between its sizes; none of a task of one size."""
        values: dict[str, set[str]] = {}
        for size in self.workload:
            for name, value in size.constants.items():
                values.setdefault(name, set()).add(value)
        return tuple(name for name, found in values.items() if len(found) > 1)

    @property
    def visible(self) -> tuple[Size, ...]:
        """The sizes that a coder may know."""
        return tuple(size for size in self.workload if not size.hidden)

    def at(self, size: Size) -> "Task":
        """Return the task at one size alone. Raises UsageError if it lacks one of the size's constants."""
        from kernelwright.kernelbench.sources.overrides import apply  # which reads text, not records

        if self.workload and size == self.workload[0]:
            return self.primary
        return self.model_copy(
            update={
                "source": apply(self.source, size.constants, self.id),
                "overrides": {**self.overrides, **size.constants},
                "workload": (),
            }
        )

    @property
    def effective_precision(self) -> Precision:
        """The precision; fp32 if the task's own is that, because its text names no other dtype."""
        plain = self.precision is Precision.task and not _OTHER_DTYPES.search(self.source)
        return Precision.fp32 if plain else self.precision

    @property
    def product_precision(self) -> ProductPrecision | None:
        """The precision of its products' operands, as far as its text and options tell; None if unknown."""
        own = self.effective_precision
        return None if own is Precision.task else cast(ProductPrecision, own.value)


class Candidate(Record):
    """One Python file that defines `ModelNew`."""

    source: str
    language: Language
    author: str  # coder and model: "builtin", "llm:gpt-5", "file"
    parents: tuple[str, ...] = ()  # sha256 of the candidates it was made from
    advice: str = ""  # the Judge's advice that led to it
    idea: str = ""  # what is new in it, in its author's words
    origin: Literal["round", "seed", "repair"] = "round"  # a seed begins a history; a repair mends its parent
    usable: bool = True  # False: the reply holds no file that is worth an evaluation
    request: str = ""  # sha256 of the model call whose reply it is; empty where no model was asked
    schedule: dict[str, str] = Field(default_factory=dict)  # how a templated kernel was rendered
    kernels: tuple[str, ...] = ()  # a templated one's, which the schedule calls k0, k1 and so on
    alternatives: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # knobs' values, if not all legal

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


class Interval(Record):
    """A median with its 95% bootstrap interval."""

    median: float
    low: float
    high: float


class Ceilings(Record):
    """Measured ceilings of the machine; None if one could not be measured."""

    copy_bytes_s: float | None  # read + write of a working set larger than the last-level cache
    cached_copy_bytes_s: float | None  # the same for a working set inside it
    fp32_flops_s: float | None  # a large matmul, on a GPU without TF32; the others as `ProductPrecision` says
    tf32_flops_s: float | None = None
    fp16_flops_s: float | None = None
    bf16_flops_s: float | None = None
    fp8_flops_s: float | None = None
    int8_flops_s: float | None = None
    disturbed: float | None = None  # share of the time that threads waited for a CPU; None: not known

    @property
    def busy(self) -> bool:
        """True if other work on the machine disturbed the measurement, so that they may be too low."""
        return self.disturbed is not None and self.disturbed > BUSY

    @property
    def complete(self) -> bool:
        """True if nothing is left to measure; a record of an older version has no products but fp32's."""
        known = None not in (self.copy_bytes_s, self.cached_copy_bytes_s, self.fp32_flops_s)
        return known and "bf16_flops_s" in self.model_fields_set

    @property
    def products(self) -> dict[ProductPrecision, float]:
        """The measured FLOP/s of products, by the precision of their operands."""
        rates = {name: getattr(self, f"{name}_flops_s") for name in get_args(ProductPrecision)}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def fastest(self, precision: ProductPrecision | None) -> ProductPrecision | None:
        """Return the precision in which products of such operands run fastest, by what was measured.

        That is their own, or another that holds these operands exactly, where their own could not be measured
        or is slower: a product of bf16 may be computed in fp32. Operands of unknown type (None) may be in
        any. None if no such ceiling is known.
        """
        rates = self.products
        ways = [way for way in (_HELD_BY[precision] if precision else rates) if way in rates]
        return max(ways, key=lambda way: rates[way], default=None)

    def flops_s(self, precision: ProductPrecision | None) -> float | None:
        """Return the FLOP/s of products with operands of this precision, computed as `fastest` says."""
        way = self.fastest(precision)
        return None if way is None else self.products[way]

    def or_higher(self, other: "Ceilings") -> "Ceilings":
        """Return the best of two measurements: other work can slow one down, nothing can speed it up.

        One undisturbed measurement is enough for the best of both not to be too low.
        """
        best: dict[str, float | None] = {}
        for name in Ceilings.model_fields:
            known = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            best[name] = (min if name == "disturbed" else max)(known, default=None)
        return Ceilings.model_validate(best)


class Fingerprint(Record):
    """Everything that a measured number depends on."""

    chip: str
    threads: int
    memory_bytes: int
    last_level_cache_bytes: int
    system: str
    python: str
    torch: str
    compiler: str


class Target(Record):
    """A device with what it can build, run and reach."""

    device: str  # "cpu", "cuda:0"
    languages: tuple[Language, ...]
    ceilings: Ceilings
    fingerprint: Fingerprint
    hardware: tuple[str, ...] = ()  # further facts that a kernel's design depends on, each a phrase
    chips: tuple[str, ...] = ()  # "sm_90": that GPU kernels are built for where no GPU is at hand


class Work(Record):
    """Minimal work of one call of a task's reference."""

    input_bytes: int
    weight_bytes: int  # parameters and buffers
    output_bytes: int
    flops: int  # of matrix products and convolutions
    products: dict[ProductPrecision, int] = Field(default_factory=dict)  # those whose operands' type is known

    @property
    def moved_bytes(self) -> int:
        return self.input_bytes + self.weight_bytes + self.output_bytes

    @property
    def unknown_flops(self) -> int:
        """FLOPs of products whose operands' type is not known."""
        return self.flops - sum(self.products.values())

    def copy_s(self, ceilings: Ceilings) -> float | None:
        """Return the least seconds of moving the data; None if the bandwidth is not known."""
        return _seconds(self.moved_bytes, ceilings.copy_bytes_s)

    def products_s(self, ceilings: Ceilings) -> float | None:
        """Return the least seconds of the products, each at its precision's ceiling; None if unknown."""
        parts = [_seconds(flops, ceilings.flops_s(precision)) for precision, flops in self.products.items()]
        parts.append(_seconds(self.unknown_flops, ceilings.flops_s(None)))
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None


def _seconds(amount: int, rate: float | None) -> float | None:
    """Return the least time for an amount of bytes or FLOPs; None if the rate is unknown."""
    if not amount:
        return 0.0
    return None if rate is None else amount / rate


class OperatorCost(Record):
    """Cost of an operator of a reference: of all its calls on tensors of these shapes in one `forward`."""

    signature: str  # "aten.mm(float32[128, 512], float32[512, 1000]) -> float32[128, 1000]"
    calls: int
    bytes: int  # of the tensors that it reads and writes
    flops: int  # of products and convolutions
    seconds: float | None = None  # in eager; None if it was not timed


class Correctness(Record):
    """Errors in units of the budget: 1.0 is the largest accepted elementwise error.

    At most one element in a hundred thousand may have up to 2.0, if another draw has cleared it.
    """

    inputs_tried: int
    error: float | None  # of the candidate, worst over all inputs; None: outputs not comparable
    reference_error: float | None  # of the reference in its own precision, measured the same way
    worst_input: str  # the input family where `error` occurred
    # How the candidate's weights were told: by names, values or shapes, or not at all ("replay").
    weights: Literal["name", "value", "shape", "replay"] = "name"


class GpuClocks(Record):
    """Clocks of a GPU while it timed."""

    sm_mhz_low: int
    sm_mhz_high: int
    throttled: tuple[str, ...]  # why it ran below the clock that was asked for: "power cap", "temperature", …


class Timing(Record):
    candidate_us: Interval
    eager_us: Interval | None = None
    compile_us: Interval | None = None
    max_autotune_us: Interval | None = None  # torch.compile(mode="max-autotune")
    cuda_graphs_us: Interval | None = None  # eager, captured once; inputs copied in, outputs out
    traffic_us: Interval | None = None  # of moving inputs, weights and outputs once, computing nothing
    floor_us: float | None = None  # least time by the measured ceilings (speed_of_light.py); None: not known
    calls_per_block: int
    rounds: int
    processes: int = 1  # of the candidate, that the rounds were spread over
    disturbed: int = 0  # phases, two a round, left out: candidate or eager had to wait for a CPU
    busy: bool = False  # other work on the machine disturbed more phases than could be left out
    alone_factor: float = 1.0  # by which calls that come alone take longer, counted in all of the candidate's
    compile_s: dict[str, float] = Field(default_factory=dict)  # baseline -> its cost, kept out of the timing
    failed_baselines: dict[str, str] = Field(default_factory=dict)  # name -> why it could not be timed
    same_code: dict[str, str] = Field(default_factory=dict)  # baseline, not timed -> the one whose code it is
    device_us: float | None = None  # of the candidate, by CUDA events in its process: a report
    clocks_differ: float | None = None  # time a call by the referee's clock over that by CUDA events
    clocks: GpuClocks | None = None

    @field_validator("compile_s", mode="before")
    @classmethod
    def _of_one_baseline(cls, value: object) -> object:
        """Convert records from before the second compiled baseline, which hold its seconds, or none."""
        if value is None:
            return {}
        return {"compile": value} if isinstance(value, int | float) else value


class Speedup(Record):
    eager: Interval | None = None
    compile: Interval | None = None
    max_autotune: Interval | None = None
    cuda_graphs: Interval | None = None
    fastest: Interval | None = None  # against the fastest of the baselines


class BuiltKernel(Record):
    """A GPU kernel as its machine code shows it, without running it."""

    name: str
    launches: int  # in a call
    threads: int  # of a block
    registers: int  # of a thread
    shared_bytes: int  # of a block, static and dynamic
    stack_bytes: int  # of a thread
    spills: int  # instructions that read or write local memory
    occupancy: float  # share of the warps of a multiprocessor, by the published rules
    limited_by: str  # "registers", "shared memory", "threads", "blocks"
    predicted_us: float | None = None  # of one launch; None: not predicted
    bound: str = ""  # what takes longest of that, in a phrase


class Build(Record):
    """A candidate's kernels built for a chip that need not be present.

    `predicted_us`: of a call on `card`, launches and torch's calls, by the cost model; None: not predicted.
    """

    chip: str  # "sm_90"
    ok: bool | None  # None: not known, because of `problem`
    kernels: tuple[BuiltKernel, ...] = ()
    problem: str = ""
    card: str = ""
    predicted_us: float | None = None


class Stages(Record):
    build_s: float = 0.0
    verify_s: float = 0.0
    time_s: float = 0.0
    kernel_s: float = 0.0  # the part of time_s in which workers ran blocks of calls, those to warm up too
    total_s: float = 0.0

    def and_then(self, later: "Stages") -> "Stages":
        """Return the stages of two evaluations of one candidate, one after the other."""
        names = type(self).model_fields
        return Stages(**{name: getattr(self, name) + getattr(later, name) for name in names})


class Capability(Record):
    """A capability of this machine, such as a layer of the sandbox or a profiler."""

    name: str
    on: bool
    why: str  # what it protects against when on, why it is off otherwise


class Environment(Record):
    """The conditions of one evaluation that its target does not fix."""

    sandbox: tuple[Capability, ...]
    caches: Literal["cold", "hot"] = "cold"
    arrivals_per_s: float | None = None  # calls came after pauses of its inverse; None: in blocks


class Advice(Record):
    """Advice of the Judge: one bottleneck, one method, one plan, and the numbers they rest on."""

    bottleneck: str
    method: str
    plan: str
    technique: str = ""  # the method by its general name, to compare its effect across tasks
    evidence: dict[str, float] = Field(default_factory=dict)  # metric name -> value
    predicted_gain: float  # candidate time before / after; 1.0 is no change
    schedule: dict[str, str] = Field(default_factory=dict)  # schedule knobs to change, for a templated kernel
    about: str = ""  # sha256 of the candidate that it is on, where that is one


class SizeResult(Record):
    """Result of a candidate at one size of a task."""

    size: Size
    verdict: Verdict
    reason: str  # may tell the shapes of a hidden size, so that no coder may read it
    timing: Timing | None = None
    speedup: Speedup | None = None


class Evaluation(Record):
    """Result of the evaluation of one candidate for one task.

    For a task of several sizes `sizes` has the result at each that was evaluated, in the order of its
    workload, and all else is of them together: times are means of a call by their weights.
    """

    schema_version: int = Field(default=SCHEMA, alias="schema")
    task: str
    candidate: str  # sha256
    target: Target
    verdict: Verdict
    reason: str
    correctness: Correctness | None = None
    timing: Timing | None = None
    speedup: Speedup | None = None
    own_kernel_share: float | None = None
    own_kernel_share_unknown: str = ""  # why there is no share of a candidate that was timed
    needs_default_dtype: bool | None = None  # whether it fails under another default dtype than float32
    builds: tuple[Build, ...] = ()  # of GPU kernels that were not timed
    launched: tuple[str, ...] = ()  # GPU kernels that ran without a GPU, in emulation or interpreted
    operators: tuple[OperatorCost, ...] = ()  # of the reference, where they were asked for
    sizes: tuple[SizeResult, ...] = Field(default=(), exclude_if=lambda results: not results)
    stages: Stages
    environment: Environment

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _as_printed(cls, value: object) -> object:
        """Leave out the score that `evaluate --json` prints, which follows from the rest."""
        if not isinstance(value, dict):
            return value
        return {name: each for name, each in value.items() if name != "speed_of_light_score"}

    @property
    def only_checked(self) -> bool:
        """True if the candidate is right and was not to be timed."""
        return self.verdict is Verdict.unmeasured and self.reason.startswith(CHECKED)

    @property
    def right(self) -> bool:
        """True if the candidate is right, timed or not."""
        unmeasured = self.verdict is Verdict.unmeasured and self.correctness is not None
        return self.verdict is Verdict.correct or unmeasured

    @property
    def predicted_us(self) -> float | None:
        """Predicted time of a call, of a right candidate that was not timed; None if nothing predicts it."""
        if self.verdict is not Verdict.unmeasured or not self.right or self.timing is not None:
            return None
        return next((build.predicted_us for build in self.builds if build.predicted_us is not None), None)

    @property
    def at_first_size(self) -> "Evaluation":
        """The evaluation with the times and speedups of the first size alone, which is what is profiled."""
        if not self.sizes:
            return self
        first = self.sizes[0]
        return self.model_copy(update={"timing": first.timing, "speedup": first.speedup, "sizes": ()})
