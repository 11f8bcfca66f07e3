"""What a run submits for a task: its best kernel or, labelled so, the baseline that was faster.

Code that torch.compile generates is no candidate, is not rewarded and is in no file; what is submitted asks
torch for it where it runs.
"""

import ast
import re
from dataclasses import dataclass

from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.records import Interval, Task
from kernelwright.results import formatting
from kernelwright.results.store.records import Attempt

_CLEARLY = 0.97  # of a baseline's speed, by the medians, where intervals are too wide to tell
_GRAPHS = "CUDA graphs"
_CALLS = {
    "torch.compile": "self.compile()",
    "max-autotune": 'self.compile(mode="max-autotune-no-cudagraphs")',
}
_COMPILED = """

class ModelNew(Reference):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        {call}
"""


@dataclass(frozen=True)
class Faster:
    """A baseline that is faster than the best kernel."""

    baseline: str  # as a report calls it
    time_us: Interval
    ratio: Interval  # its time over the kernel's


def faster_baselines(best: Attempt) -> list[Faster]:
    """Those that a kernel is behind, by the whole interval or by 3% in the median; the fastest first."""
    timing, speedup = best.evaluation.timing, best.evaluation.speedup
    if timing is None or speedup is None:
        return []
    baselines = (
        ("eager", timing.eager_us, speedup.eager),
        ("torch.compile", timing.compile_us, speedup.compile),
        ("max-autotune", timing.max_autotune_us, speedup.max_autotune),
        (_GRAPHS, timing.cuda_graphs_us, speedup.cuda_graphs),
    )
    found = [
        Faster(name, time_us, ratio)
        for name, time_us, ratio in baselines
        if time_us is not None and ratio is not None and (ratio.high < 1 or ratio.median < _CLEARLY)
    ]
    return sorted(found, key=lambda each: each.ratio.median)


def submitted(best: Attempt) -> Faster | None:
    """What is submitted instead of the kernel; never CUDA graphs, which overwrite what they returned."""
    return next((each for each in faster_baselines(best) if each.baseline != _GRAPHS), None)


def with_baseline(task: Task, best: Attempt, faster: Faster) -> str:
    """A file whose `ModelNew` is the baseline."""
    timing = best.evaluation.timing
    assert timing is not None
    heading = (
        f"The reference, by {faster.baseline}: {formatting.time(faster.time_us.median)} a call.\n\n"
        f"The best kernel that was written takes {formatting.time(timing.candidate_us.median)}: "
        f"{formatting.ratio(faster.ratio.median)} {formatting.bounds(faster.ratio)} of its speed."
    )
    call = _CALLS.get(faster.baseline)
    name = "ModelNew" if call is None else "Reference"
    source = re.sub(r"\bModel\b", name, _without_docstring(task.source)).strip()
    compiled = "" if call is None else _COMPILED.format(call=call)
    return f'"""{heading}\n"""\n\n{source}\n{compiled}'


def _without_docstring(source: str) -> str:
    first = parsed(source).body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno is not None:
        return "\n".join(source.splitlines()[first.end_lineno :])
    return source
