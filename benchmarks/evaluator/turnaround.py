"""Build latency of a candidate, and the cost of an evaluation beyond building and timing.

    python -m benchmarks turnaround

Machine: CPU, quiet. Time: 6 minutes (estimate). Writes cpu/turnaround-build.md and
cpu/turnaround-overhead.md.
"""

from benchmarks.publishing import publish
from benchmarks.references import AA_TASKS, itself
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import LocalEvaluator, Referee
from kernelwright.kernelbench.jit import latency
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Evaluation, Task

# Fields of the latency table, each with the label of its row.
_WAYS_TO_BUILD = {
    "load_inline_stock": "torch's load_inline, nothing cached",
    "load_inline": "load_inline of a candidate, new source",
    "load_inline_hit": "load_inline of a candidate, seen before",
    "compile_cpp": "jit.compile_cpp, new source",
    "compile_cpp_hit": "jit.compile_cpp, seen before",
    "precompiled_header": "making load_inline's precompiled header, once",
}


def run() -> None:
    latencies = latency.measure()
    builds = [
        (label, _seconds(getattr(latencies, f"{way}_s")), _times(latencies.ratios.get(way)))
        for way, label in _WAYS_TO_BUILD.items()
    ]
    with Referee.start(cache=cache_folder()) as evaluator:
        machine = evaluator.target.fingerprint
        header: tuple[str, ...] = ("way", "time", "times as fast as torch's load_inline")
        publish("turnaround-build", "Build latency of one candidate", header, builds, machine)
        overheads = [_overhead(evaluator, task) for task in sources.resolve(AA_TASKS)]
    header = ("task", "evaluation", "build", "verify", "timing", "timed blocks", "overhead")
    publish("turnaround-overhead", "What an evaluation costs", header, overheads, machine)


def _times(ratio: float | None) -> str:
    return f"{ratio:.0f}" if ratio else "-"


def _seconds(value: object) -> str:
    return f"{value:.4g} s" if isinstance(value, float) else "-"


def _overhead(evaluator: LocalEvaluator, task: Task) -> tuple[str, ...]:
    """Stages of the second evaluation of a task: as in a run, its oracle and baselines are already up."""
    for _ in range(2):
        evaluation: Evaluation = evaluator.evaluate(task, itself(task))
    s = evaluation.stages
    share = (s.total_s - s.build_s - s.kernel_s) / s.total_s
    times = (s.total_s, s.build_s, s.verify_s, s.time_s, s.kernel_s)
    return (task.id, *(f"{value:.2f} s" for value in times), f"{100 * share:.0f}%")
