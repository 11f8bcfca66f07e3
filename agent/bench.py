"""The numbers of results/published/cpu: `python -m agent.bench all`, or one of its parts by name.

To be run from the root of a checkout. Each writes its table as Markdown, with the environment and the
command that makes it again.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from agent.tracing import trace
from kernelbench import sources
from kernelbench.evaluator import Effort, Evaluator
from kernelbench.evaluator.process import WorkerPool
from kernelbench.jit import latency
from kernelbench.machine import cache_folder, physical_threads
from kernelbench.records import Candidate, Evaluation, Fingerprint, Task, Verdict
from kernelbench.redteam.catalogue import catalogue
from results.folder import write_atomically

PUBLISHED = Path("results") / "published" / "cpu"
AA_TASKS = (
    "builtin:level1/softmax",
    "builtin:level1/gelu_tanh",
    "builtin:level1/matmul_square",
    "builtin:level2/linear_gelu_layer_norm",
    "builtin:level3/mlp",
)
UPSTREAM = (
    ("kernelbench:1/19", "dim=98304 batch_size=128"),  # ReLU
    ("kernelbench:1/23", "dim=98304 batch_size=128"),  # Softmax
    ("kernelbench:1/26", "dim=98304 batch_size=128"),  # GELU
    ("kernelbench:1/36", "batch_size=2"),  # RMSNorm
    ("kernelbench:1/94", "batch_size=256"),  # MSELoss
    ("kernelbench:2/12", "batch_size=256 in_features=1024 out_features=1024"),  # Gemm_Multiply_LeakyReLU
    ("kernelbench:2/40", "batch_size=1024 in_features=1024 out_features=1024"),  # Matmul_Scaling_ResidualAdd
    ("kernelbench:2/59", "batch_size=512 in_features=1024 out_features=1024"),  # Matmul_Swish_Scaling
    ("kernelbench:2/62", "batch_size=512 input_size=1024 hidden_size=1024"),  # Matmul_GroupNorm_LeakyReLU_Sum
    ("kernelbench:2/99", "batch_size=512 in_features=1024 out_features=1024"),  # Matmul_GELU_Softmax
)

LAYERS = (
    "pid_namespace",
    "network_namespace",
    "ipc_namespace",
    "mount_namespace",
    "control_groups",
    "landlock",
    "seccomp",
)

WAYS_TO_BUILD = {
    "load_inline_stock": "torch's load_inline, nothing cached",
    "load_inline": "load_inline of a candidate, new source",
    "load_inline_hit": "load_inline of a candidate, seen before",
    "compile_cpp": "jit.compile_cpp, new source",
    "compile_cpp_hit": "jit.compile_cpp, seen before",
    "precompiled_header": "making load_inline's precompiled header, once",
}

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)


def itself(task: Task) -> Candidate:
    """The reference as its own candidate."""
    source = task.source.replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")
    return Candidate(source=source, language="torch", author="reference")


@app.command()
def aa(repeats: Annotated[int, typer.Option(help="Evaluations a task.")] = 10) -> None:
    """The reference against itself: how often the interval covers 1.0, and how far from it the speedup is.

    Beside it a timer as many harnesses have it: both models in one process, three calls to warm up, the mean
    of ten.
    """
    tasks = sources.resolve(AA_TASKS)
    rows, ours, covered, naive = [], [], [], []
    with Evaluator(cache=cache_folder()) as evaluator:
        for task in tasks:
            found, plain = [], []
            for _ in range(repeats):
                evaluation = evaluator.evaluate(task, itself(task), ("eager",))
                assert evaluation.speedup is not None and evaluation.speedup.eager is not None, (
                    evaluation.reason
                )
                found.append(evaluation.speedup.eager)
                plain.append(_naive_ratio(task))
                last = found[-1]
                shown = f"{last.median:.4f} [{last.low:.4f}, {last.high:.4f}]"
                log(f"{task.id}: {shown}, mean of 10 {plain[-1]:.4f}")
            covered += [interval.low <= 1.0 <= interval.high for interval in found]
            ours += [abs(interval.median - 1) for interval in found]
            naive += [abs(ratio - 1) for ratio in plain]
            rows.append((task.id, *_spread([abs(i.median - 1) for i in found]),
                         f"{sum(i.low <= 1 <= i.high for i in found)}/{repeats}",
                         *_spread([abs(r - 1) for r in plain])))  # fmt: skip
        rows.append(("all", *_spread(ours), f"{sum(covered)}/{len(covered)}", *_spread(naive)))
        header = (
            "task",
            "median error",
            "largest",
            "interval covers 1",
            "mean of 10: median error",
            "largest",
        )
        publish(
            "aa",
            "The reference against itself: speedup - 1 without its sign",
            header,
            rows,
            evaluator.target.fingerprint,
        )


def _spread(values: Sequence[float]) -> tuple[str, str]:
    return f"{100 * statistics.median(values):.2f}%", f"{100 * max(values):.2f}%"


def _naive_ratio(task: Task) -> float:
    """In a process of its own, once what the evaluation before left has gone."""
    time.sleep(0.5)
    command = [sys.executable, "-m", "agent.bench", "naive"]
    done = subprocess.run(command, input=task.source, capture_output=True, text=True, check=True)
    return float(done.stdout)


@app.command(hidden=True)
def naive() -> None:
    """Time the reference on stdin twice in one process, as harnesses do (mean of ten); prints the ratio."""
    import torch

    torch.set_grad_enabled(False)
    torch.set_num_threads(physical_threads())
    module: dict[str, Any] = {}
    exec(sys.stdin.read(), module)
    models = [module["Model"](*module["get_init_inputs"]()) for _ in range(2)]
    inputs = module["get_inputs"]()
    first, second = (_mean_of_ten(partial(model, *inputs)) for model in models)
    print(first / second)


def _mean_of_ten(call: Callable[[], object]) -> float:
    for _ in range(3):
        call()
    start = time.perf_counter()
    for _ in range(10):
        call()
    return (time.perf_counter() - start) / 10


@app.command()
def turnaround() -> None:
    """How long a candidate takes to build, and what an evaluation costs beyond building and timing."""
    table = latency.measure()
    rows = [
        (words, _seconds(getattr(table, f"{name}_s")), _times(table.ratios.get(name)))
        for name, words in WAYS_TO_BUILD.items()
    ]
    with Evaluator(cache=cache_folder()) as evaluator:
        mark = evaluator.target.fingerprint
        header: tuple[str, ...] = ("way", "time", "times as fast as torch's load_inline")
        publish("turnaround-build", "Build latency of one candidate", header, rows, mark)
        overheads = [_overhead(evaluator, task) for task in sources.resolve(AA_TASKS)]
    header = ("task", "evaluation", "build", "verify", "timing", "timed blocks", "overhead")
    publish("turnaround-overhead", "What an evaluation costs", header, overheads, mark)


@app.command()
def layers(repeats: Annotated[int, typer.Option(help="Workers started a layer.")] = 30) -> None:
    """What each layer of the sandbox adds to the start of a worker and to one message there and back."""
    with ExitStack() as stack:
        everything = stack.enter_context(Evaluator(cache=cache_folder()))
        on = [layer.name for layer in everything.layers if layer.on and layer.name in LAYERS]
        found: dict[str, list[tuple[float, float]]] = {"all of them": []}
        pools = {"all of them": everything.pool}
        for name in (*on, "none of them"):
            without = LAYERS if name == "none of them" else (name,)
            pools[name] = stack.enter_context(Evaluator(cache=cache_folder(), without=without)).pool
            found[name] = []
        for _ in range(repeats):
            for name, pool in pools.items():
                found[name].append(_start_and_message_ms(pool))
        rows = []
        whole = [statistics.median(column) for column in zip(*found["all of them"], strict=True)]
        for name, measured in found.items():
            start, message = (statistics.median(column) for column in zip(*measured, strict=True))
            costs = ("", "") if name not in on else (f"{whole[0] - start:.2f}", f"{whole[1] - message:.3f}")
            label = name if name not in on else f"all but {name}"
            if name == "pid_namespace":
                label += " and mount_namespace"  # which needs it
            rows.append((label, f"{start:.2f}", costs[0], f"{message:.3f}", costs[1]))
        header = ("layers on", "worker starts, ms", "so it costs", "message, ms", "so it costs")
        publish("layers", "What the sandbox costs", header, rows, everything.target.fingerprint)


def _start_and_message_ms(pool: WorkerPool) -> tuple[float, float]:
    """From asking for a worker to its first answer, less a message; and a message to it and back."""
    started = time.perf_counter()
    with pool.start("candidate", "kernelbench.evaluator.worker:serve", "bench") as worker:
        worker.ask({"do": "prepare"}, 60)
        first = time.perf_counter() - started
        times = []
        for _ in range(20):
            started = time.perf_counter()
            worker.ask({"do": "prepare"}, 60)
            times.append(time.perf_counter() - started)
    message = statistics.median(times)
    return 1e3 * (first - message), 1e3 * message


def _times(ratio: float | None) -> str:
    return f"{ratio:.0f}" if ratio else "-"


def _seconds(value: object) -> str:
    return f"{value:.4g} s" if isinstance(value, float) else "-"


def _overhead(evaluator: Evaluator, task: Task) -> tuple[str, ...]:
    """The second evaluation of a task, as in a run: oracle and baselines are up."""
    for _ in range(2):
        evaluation: Evaluation = evaluator.evaluate(task, itself(task))
    s = evaluation.stages
    share = (s.total_s - s.build_s - s.kernel_s) / s.total_s
    times = (s.total_s, s.build_s, s.verify_s, s.time_s, s.kernel_s)
    return (task.id, *(f"{value:.2f} s" for value in times), f"{100 * share:.0f}%")


@app.command()
def suite(
    levels: Annotated[list[int] | None, typer.Argument(help="1, 2, 3: all by default.")] = None,
    rounds: int = 2,
) -> None:
    """The builtin coder on the built-in suite, a table a level."""
    for level in levels or (1, 2, 3):
        _run(["--suite", f"builtin:level{level}", "--rounds", str(rounds)], f"suite-level{level}")


@app.command()
def upstream(
    kernelbench_dir: Annotated[Path, typer.Option(envvar="KERNELBENCH_DIR")], rounds: int = 3
) -> None:
    """The builtin coder on ten upstream KernelBench problems, sizes reduced to fit two cores."""
    names = PUBLISHED / "upstream.txt"
    names.parent.mkdir(parents=True, exist_ok=True)
    names.write_text("".join(f"{task} set {values}\n" for task, values in UPSTREAM))
    _run(
        ["--suite", str(names), "--kernelbench-dir", str(kernelbench_dir), "--rounds", str(rounds)],
        "upstream",
    )


def _run(arguments: list[str], name: str) -> None:
    out = Path("runs") / f"bench-{name}"
    resume = (out / "run.db").exists()
    wanted = ["--resume", str(out)] if resume else [*arguments, "--out", str(out)]
    subprocess.run([sys.executable, "-m", "kernelwright", "run", *wanted], check=True)
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    for format in ("md", "csv"):
        target = PUBLISHED / f"{name}.{format}"
        command = [
            sys.executable,
            "-m",
            "kernelwright",
            "report",
            str(out),
            "--format",
            format,
            "--output",
            str(target),
        ]
        subprocess.run(command, check=True)


@app.command()
def rejections(
    names: Annotated[list[str] | None, typer.Argument(help="Tasks; the whole suite by default.")] = None,
) -> None:
    """Correct kernels that are turned away: the reference itself and what the builtin coder writes, by task.

    The honest candidates of the red team are among them too. One round of timing each: outputs of timed
    calls are held against the reference's as ever.
    """
    from agent.builtin.coder import BuiltinCoder  # imports torch

    away, errors = [], []
    once = Effort(rounds=1, processes=1, half_width=1.0)
    with Evaluator(cache=cache_folder()) as evaluator:
        coder = BuiltinCoder(lambda task: trace(evaluator.pool, task))
        pairs = [
            (task, candidate)
            for task in (sources.resolve(names) if names else sources.resolve([], suite="builtin"))
            for candidate in (itself(task), coder.propose(task, [], None))
        ]
        honest = catalogue(["honest"]) if not names else []
        pairs += [(e.task, e.candidate) for e in sorted(honest, key=lambda e: e.task.id)]
        for number, (task, candidate) in enumerate(pairs, 1):
            evaluation = evaluator.evaluate(task, candidate, ("eager",), once)
            error = evaluation.correctness.error if evaluation.correctness else None
            said = (
                f"{evaluation.verdict} {evaluation.reason if error is None else f'{error:.2f} of the budget'}"
            )
            log(f"[{number}/{len(pairs)}] {task.id} {candidate.author}: {said}")
            if evaluation.verdict is not Verdict.correct:
                away.append((task.id, candidate.author, str(evaluation.verdict), evaluation.reason))
            elif error is not None:
                errors.append(error)
        rows = [("evaluated", f"{len(pairs)}", "", ""), ("turned away", f"{len(away)}", "", "")]
        cuts = statistics.quantiles(errors, n=100)
        rows += [("error, in budgets", f"median {cuts[49]:.3f}", f"99% {cuts[98]:.3f}", f"{max(errors):.3f}")]
        header = ("correct kernels", "", "", "largest")
        publish(
            "rejections", "Correct kernels turned away", header, rows + away, evaluator.target.fingerprint
        )


@app.command("all")
def everything(
    kernelbench_dir: Annotated[Path | None, typer.Option(envvar="KERNELBENCH_DIR")] = None,
) -> None:
    """All of it; the upstream problems only where there is a checkout."""
    aa()
    turnaround()
    layers()
    rejections()
    suite()
    if kernelbench_dir is not None:
        upstream(kernelbench_dir)


def publish(
    name: str, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], mark: Fingerprint
) -> None:
    """Write a table with what it depends on."""
    where = (
        f"{mark.chip}, {mark.threads} threads, {mark.last_level_cache_bytes >> 20} MiB last-level cache, "
        f"torch {mark.torch}, Python {mark.python}, {mark.compiler}"
    )
    lines = [f"# {title}", "", f"Made by `python -m agent.bench {name.split('-')[0]}` on {where}.", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    write_atomically(PUBLISHED / f"{name}.md", "\n".join(lines) + "\n")
    log("\n".join(lines))


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
