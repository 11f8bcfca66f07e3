"""Protocol of an evaluation: the numbers of the measurement, and the limits that it enforces."""

from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveFloat, PositiveInt, field_validator

from kernelwright.kernelbench.records import TRAFFIC, Record

BASELINES = ("eager", "compile")
ALL_BASELINES = (*BASELINES, "max-autotune", "cuda-graphs", TRAFFIC)


class Effort(Record):
    """Amount of timing: rounds and processes at first, and further ones while an interval is wide."""

    rounds: PositiveInt  # of two phases each
    processes: PositiveInt  # of candidate and eager, one after the other, that these rounds are spread over
    most_processes: PositiveInt  # with as many rounds in each further one
    most_rounds: int = 0  # in one process, if more than its share
    half_width: float  # of a speedup's interval, as a share of it, that is narrow enough
    timing_s: float = 20.0  # then no further round begins, but for the fewest that there must be
    block_share: float = 1.0  # of the protocol's blocks, by their calls


EFFORTS = {
    "quick": Effort(rounds=6, processes=2, most_processes=3, half_width=0.05),
    "full": Effort(rounds=12, processes=4, most_processes=6, half_width=0.02),
    "thorough": Effort(rounds=12, processes=4, most_processes=100, half_width=0.01, timing_s=120.0),
}
QUICK = EFFORTS["quick"]
# Of the candidates of a search, whose winner is measured afresh.
SEARCH = Effort(rounds=4, processes=1, most_processes=1, most_rounds=12, half_width=0.05, block_share=0.5)


@dataclass(frozen=True)
class Measurement:
    """Timing of one candidate, beyond the protocol that holds for all.

    `baselines`: of ALL_BASELINES; eager is always among them. `effort`: None for the protocol's own.
    `to_beat`: a speedup over eager; timing ends early once it is clear on which side of it the candidate is.
    `operators`: whether the reference's operators are timed in eager, too. `timed`: False to build and verify
    alone, which makes of a right candidate an `unmeasured` one.
    """

    baselines: tuple[str, ...] = BASELINES
    effort: Effort | None = None
    to_beat: float | None = None
    operators: bool = False
    timed: bool = True


EAGER = Measurement(("eager",))
CHECK = Measurement(("eager",), timed=False)


class Protocol(Record):
    """Timing: blocks of N and 2N calls, candidate and baselines alternating.

    What a block costs once (waking the process, the message) is measured on empty blocks and taken off;
    see `kernelwright.kernelbench.evaluator.timing.statistics`.
    """

    effort: Effort = EFFORTS["full"]
    block_s: float = 0.05  # what a block of N calls should take at least
    max_calls: int = 64  # N at most
    inputs_bytes: int = 1 << 30  # all input slots together, on a CPU; for a GPU see `memory.budget`
    outputs_bytes: int = 1 << 30  # outputs a worker keeps until the block ends, on a CPU
    caches: Literal["cold", "hot"] = "cold"
    arrivals_per_s: PositiveFloat | None = None  # one by one, after pauses of its inverse on average
    sanitize: str | None = None  # a tool of compute-sanitizer's that a candidate must withstand before timing
    check_first: bool = False  # CUDA C++ in emulation, at smaller sizes, before it takes time of a GPU
    own_kernels: float = 0.0  # the share of a call that must be spent in the candidate's own kernels
    verified_blocks: int = 2  # timed blocks, about, chosen in secret, whose outputs are checked too
    families: tuple[str, ...] = (
        "task",
        "task",
        "zero_centred",
        "heavy_tailed",
        "needle",
        "dominated",
        "small",
        "edge",
        "perturbed",
    )
    min_rounds: int = 5  # however slow a task is

    @field_validator("families")
    @classmethod
    def _with_the_task_s_own(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        """Check for the task's own family, whose errors bound what outputs of timed calls may be off by."""
        if "task" not in families:
            raise ValueError("the families of inputs must hold 'task'")
        return families


COMPILE_S = 300.0


class Limits(Record):
    """Limits of a worker. Past a time limit its whole process tree is killed."""

    build_s: float = 180.0
    load_s: float = 60.0  # and again for what a process's first call compiles or tunes
    call_s: float = 30.0  # one forward call; a block gets this for each of its calls, and at most 4x
    compile_s: float = COMPILE_S  # each baseline
    memory_bytes: int = 8 << 30
    processes: int = 256
    file_bytes: int = 4 << 30
    builds_bytes: int = 1 << 30  # all that a candidate's build leaves behind
