"""Stage 3: how good is it. Tables in the form of results/published, rewritten after every row."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.publishing import table
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import KernelwrightError, Unavailable
from kernelwright.kernelbench.evaluator import EAGER, EFFORTS, Limits, Measurement
from kernelwright.kernelbench.records import TRAFFIC, Candidate, Evaluation, Interval, Task, Verdict
from kernelwright.results.store.folder import write_atomically
from tests.gpu.acceptance.bench import Bench, kernel, machine, task, told
from tests.gpu.acceptance.running import Step

_HERE = Path(__file__).parent
_ALL = Measurement(("eager", "compile", "max-autotune", "cuda-graphs", TRAFFIC))
_COMPILE_S = 90.0  # of one baseline: autotuning a model may take minutes, of which there are nine
_SEARCHED = ("level1/softmax", "level1/layer_norm", "level1/sum_columns", "level2/swiglu_gate")
_SEARCH_S = 70  # of a run, which ends with what it has
_BYTES_OFF = 0.2  # of the least bytes that a kernel has to move, by Nsight Compute


def ceilings(bench: Bench) -> None:
    """Bandwidths by working set, peaks by precision and overheads, as `doctor --measure` finds them."""
    from kernelwright.profiling.survey import measuring
    from kernelwright.profiling.survey.wording import in_words

    referee = bench.referee()
    found = list(in_words(measuring.measure(referee.sessions.pool, referee.target)))
    for each in found:
        bench.check(each.on, each.name, each.why)
    rows = [[each.name, each.why] for each in found]
    _publish(bench, "ceilings", "Ceilings", ["what", "measured"], rows)


def kernelbench(bench: Bench) -> None:
    """Kernels of the builtin coder for a sample, against eager, compile, max-autotune and CUDA graphs."""
    measurement = EAGER if bench.small else _ALL
    header = ["task", "verdict", "kernel", "eager", "compile", "max-autotune", "CUDA graphs", "traffic",
              "vs the fastest", "own kernels"]  # fmt: skip
    rows: list[list[str]] = []
    for chosen in _sample(bench):
        try:
            proposed = _proposed(chosen, "triton" if bench.gpu else "cpp")
            found, _ = bench.evaluate(
                chosen, proposed, measurement, effort=EFFORTS["quick"], limits=Limits(compile_s=_COMPILE_S)
            )
        except KernelwrightError as error:
            bench.check(False, chosen.id, error)
            rows.append([chosen.id, str(error).replace("|", "/")[:120], *[""] * (len(header) - 2)])
        else:
            bench.check(found.verdict is Verdict.correct, chosen.id, f"{proposed.language}: {told(found)}")
            rows.append([chosen.id, str(found.verdict), *_times(found)])
        _publish(bench, "kernelbench", "Kernels of the builtin coder, µs", header, rows)


def _sample(bench: Bench) -> Iterator[Task]:
    """Tasks of KernelBench where there is a checkout, at their own sizes, and then of the built-in suite."""
    checkout = os.environ.get("KERNELBENCH_DIR")
    lists = ["sample-kernelbench.txt"] if checkout else []
    folder = Path(checkout) if checkout else None
    if bench.small:
        yield from sources.resolve(
            ["builtin:level1/softmax"], overrides=sources.from_words(["batch_size=64"])
        )
        return
    bench.check(None if checkout is None else True, "KERNELBENCH_DIR", checkout or "names no checkout")
    for name in [*lists, "sample-builtin.txt"]:
        yield from sources.resolve([str(_HERE / name)], kernelbench_dir=folder)


def _proposed(chosen: Task, language: str) -> Candidate:
    """Return the first candidate of the builtin coder in a language."""
    from kernelwright.agent.builtin.coder import BuiltinCoder
    from kernelwright.agent.builtin.frontend.trace import trace_json
    from kernelwright.agent.builtin.ir.graph import Graph

    coder = BuiltinCoder(lambda asked: Graph.from_json(trace_json(asked.source, asked.precision)), language)
    return coder.propose(chosen, [], None)


def _times(found: Evaluation) -> list[str]:
    timing, speedup = found.timing, found.speedup
    if timing is None:
        return [found.reason.replace("|", "/").replace("\n", " ")[:120], *[""] * 7]
    columns = [timing.candidate_us, timing.eager_us, timing.compile_us, timing.max_autotune_us,
               timing.cuda_graphs_us, timing.traffic_us]  # fmt: skip
    share = "" if found.own_kernel_share is None else f"{found.own_kernel_share:.0%}"
    fastest = speedup.fastest if speedup else None
    ratio = "" if fastest is None else f"{fastest.median:.2f}× [{fastest.low:.2f}, {fastest.high:.2f}]"
    return [*map(_median, columns), ratio, share]


def _median(time_us: Interval | None) -> str:
    return "" if time_us is None else f"{time_us.median:.1f}"


def counters(bench: Bench) -> None:
    """Nsight Compute's counters of a kernel that reads its input once and writes as much: bytes are as many."""
    from kernelwright.profiling.gpu.nsight import NsightCompute
    from kernelwright.profiling.records import Profile
    from kernelwright.profiling.rung import Subject

    rows = 4096
    found, _ = bench.evaluate(task(rows), kernel("triton"), EAGER)
    try:
        read = NsightCompute().read(Subject(bench.referee(), task(rows), kernel("triton"), found))
    except Unavailable as error:
        bench.check(False, "ncu", error)
        return
    profile = Profile(metrics=read.metrics, bottleneck="unknown", speed_of_light=None)
    least = 4.0 * 4096 * rows
    moved = profile.value("dram_read", "kernel")
    fine = moved is not None and abs(moved / least - 1) < _BYTES_OFF
    bench.check(fine, "bytes read from memory", f"{moved} of {least:.0f}", moved=moved, least=least)
    listed = [[each.name, each.kernel or "", f"{each.value:.6g}", each.unit] for each in read.metrics]
    _publish(bench, "counters", "Counters of relu(2 x) + 1 in Triton, 64 MiB in and out",
             ["metric", "kernel", "value", "unit"], listed)  # fmt: skip


def search(bench: Bench) -> None:
    """A run of the builtin coder over four tasks of the suite, in Triton and in CUDA C++."""
    for language in ("triton", "cuda"):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            names = [f"builtin:{name}" for name in _SEARCHED]
            words = [sys.executable, "-m", "kernelwright", "run", *names, "--target", bench.device, "--language",
                     language, "--rounds", "1", "--effort", "quick", "--out", str(run)]  # fmt: skip
            try:
                subprocess.run(words, cwd=_HERE.parents[2], timeout=_SEARCH_S, check=False)
            except subprocess.TimeoutExpired:
                bench.check(False, language, f"not done after {_SEARCH_S} s")
            file = run / "summary.json"
            correct = json.loads(file.read_text())["correct"] if file.exists() else 0
            bench.check(correct == len(names), language, f"{correct} of {len(names)} tasks correct")


def _publish(
    bench: Bench, name: str, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    made = f"Made by `python -m tests.gpu.acceptance 3 --only {bench.step}` on {machine(bench.device)}."
    lines = [f"# {title}", "", made, "", *table(header, rows)]
    write_atomically(bench.out / f"{name}.md", "\n".join(lines) + "\n")


STEPS = (
    Step(ceilings, 90),
    Step(counters, 60),
    Step(kernelbench, 300, on_cpu=True),
    Step(search, 160),
)
