"""Records of a model's parts and of what kernels for them gain, as they are written to files."""

import math
from typing import TypeAlias

from pydantic import ConfigDict, Field

from kernelwright.kernelbench.records import Interval, Record

Constant: TypeAlias = bool | int | float | str | None


class ExtractedPart(Record):
    """Calls of one kind: of modules of one class and setting, or of a function. Times are of one step."""

    kind: str  # the class or function, with its Python module
    is_module: bool
    places: tuple[str, ...]  # paths of the modules; functions as "path:function"
    call: int = 0  # number of the first call of this kind at the first place
    calls: int
    forward_s: float
    backward_s: float
    products_s: float  # of both, in products, convolutions and attention
    kept_bytes: int  # for the backward pass, beside weights
    torch_calls: int = 0  # of one call, as traced
    task: str = ""  # name of its task file; "" without one
    reason: str = ""  # why there is none
    one_size: str = ""  # why the task has the first size alone, though the model has several
    constants: dict[str, Constant] = Field(default_factory=dict)  # of a function's arguments, by name
    function: str = ""  # of torch's, that is computed of the layer's output, too
    reads_a_sum: bool = False  # a residual, say, which no kernel for the part can compute with it

    @property
    def name(self) -> str:
        of = f"{self.function.rpartition('.')[2]} of " if self.function else ""
        return of + self.kind.rpartition(".")[2]

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def fusable_s(self) -> float:
        """Time of all operators but products: what fusing them could save at most."""
        return self.seconds - self.products_s


class ModelExtract(Record):
    """Result of `extract`: the time of a model's step and its parts. Shares of parts are of `profiled_s`."""

    model: str
    words: tuple[str, ...] = ()  # --input, --init and --size of it
    trains: bool
    seconds: float  # of a step, at the first size
    profiled_s: float  # of its operators, under the profiler
    products_s: float
    kept_bytes: int
    parts: tuple[ExtractedPart, ...]


class StepTimes(Record):
    """Times of a step, medians, and the ratio of blocks side by side.

    Of several sizes `stock_s` and `drop_in_s` are means by weight, and `sizes` has each by its name.
    """

    stock_s: float
    drop_in_s: float
    speedup: Interval
    sizes: "dict[str, StepTimes]" = Field(default_factory=dict)


class ResultDeviation(Record):
    """Distance of a result from that in float64, by the largest number in it."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    name: str  # "loss", "gradient of NAME", "output 0"
    size: str = ""  # "" of a model with one
    stock_error: float
    drop_in_error: float
    budget: float = math.inf  # of the latter: four times the former and a rounding

    @property
    def within(self) -> bool:
        return self.drop_in_error <= self.budget


class StepComparison(Record):
    """A model's step as it is, and with drop-ins."""

    eager: StepTimes
    compiled: StepTimes | None
    not_compiled: str = ""  # why there is none
    not_exact: str = ""  # why there are no deviations
    stock_peak_bytes: int  # at the size that needs most
    drop_in_peak_bytes: int
    deviations: tuple[ResultDeviation, ...]


class PartResult(Record):
    """Result of a part: its kernel against what the model computes, in calls of the step."""

    part: str
    task: str
    places: tuple[str, ...]
    package: str  # its folder in packages/; "" without a kernel
    replaced: int = 0  # layers and functions
    times: StepTimes | None = None  # of a call, in training with its backward pass; eager
    stock_peak_bytes: int = 0  # of the step, where the part is to save memory
    drop_in_peak_bytes: int = 0
    kept: bool = False
    reason: str = ""  # why it is not


class ModelResult(Record):
    """Result of `optimize`: the kernels that pay, and the step with all of these."""

    model: str
    words: tuple[str, ...] = ()  # --input, --init and --size of it
    trains: bool
    parts: tuple[PartResult, ...]
    comparison: StepComparison | None  # None if no kernel is kept
    compiled: StepTimes | None = None  # of the compiled step with all kernels in it, before that was decided
