"""Records and runs for the tests of results/: small, whole and of known numbers."""

from pathlib import Path

from kernelwright.kernelbench.records import (
    Advice,
    Candidate,
    Capability,
    Ceilings,
    Correctness,
    Environment,
    Evaluation,
    Fingerprint,
    Interval,
    Speedup,
    Stages,
    Target,
    Task,
    Timing,
    Verdict,
)
from kernelwright.profiling.records import Metric, Profile
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall

TARGET = Target(
    device="cpu",
    languages=("cpp",),
    ceilings=Ceilings(copy_bytes_s=2.1e10, cached_copy_bytes_s=8.4e10, fp32_flops_s=3.3e11),
    fingerprint=Fingerprint(
        chip="Testium 9000",
        threads=2,
        memory_bytes=16 * 2**30,
        last_level_cache_bytes=32 * 2**20,
        system="Linux 6.1",
        python="3.11.7",
        torch="2.9.0",
        compiler="g++ 12.2.0",
    ),
)
ENVIRONMENT = Environment(
    sandbox=(
        Capability(name="namespaces", on=True, why="hides the network and other processes"),
        Capability(name="landlock", on=False, why="this kernel lacks it"),
    ),
)
ADVICE = Advice(
    bottleneck="memory traffic",
    method="fuse the epilogue",
    plan="keep the row in registers and write it once",
    evidence={"dram_bytes": 4.2e6},
    predicted_gain=1.4,
)
PROFILE = Profile(
    metrics=(Metric(name="dram_bytes", value=4.2e6, unit="bytes", provenance="perf"),),
    bottleneck="memory",
    speed_of_light=0.6,
)


def task(name: str, level: int = 1) -> Task:
    return Task(id=f"builtin:level{level}/{name}", level=level, source=f"# {name}\nclass Model: ...\n")


def candidate(number: int, parents: tuple[str, ...] = ()) -> Candidate:
    source = f"# kernel {number}\nclass ModelNew: ...\n"
    return Candidate(source=source, language="cpp", author="builtin", parents=parents)


def interval(median: float, spread: float = 0.02) -> Interval:
    return Interval(median=median, low=median * (1 - spread), high=median * (1 + spread))


def evaluation(
    of_task: Task,
    of: Candidate,
    verdict: Verdict = Verdict.correct,
    eager: float | Interval | None = None,
    compile: float | None = None,
    reason: str = "",
    floor: float | None = None,
) -> Evaluation:
    """An evaluation; with `eager`, one that was timed: eager PyTorch takes 100 µs, and at least `floor` µs."""
    timing = speedup = None
    if eager is not None:
        over_eager = eager if isinstance(eager, Interval) else interval(eager)
        over_compile = None if compile is None else interval(compile)
        slower = over_compile if over_compile and over_compile.median < over_eager.median else over_eager
        speedup = Speedup(eager=over_eager, compile=over_compile, fastest=slower)
        timing = Timing(
            candidate_us=interval(100 / over_eager.median),
            eager_us=interval(100.0),
            floor_us=floor,
            calls_per_block=10,
            rounds=20,
        )
    return Evaluation(
        task=of_task.id,
        candidate=of.sha256,
        target=TARGET,
        verdict=verdict,
        reason=reason,
        correctness=Correctness(inputs_tried=12, error=0.1, reference_error=0.1, worst_input="normal"),
        timing=timing,
        speedup=speedup,
        own_kernel_share=0.97 if timing else None,
        stages=Stages(build_s=0.5, verify_s=1.0, time_s=2.0, total_s=3.5),
        environment=ENVIRONMENT,
    )


def llm_call(task_id: str | None, usd: float | None) -> LlmCall:
    return LlmCall(
        task=task_id,
        role="coder",
        model="test-model",
        request_sha256="0" * 64,
        request={"messages": [{"role": "user", "content": "faster, please"}]},
        response={"content": "class ModelNew: ..."},
        prompt_tokens=100,
        completion_tokens=50,
        usd=usd,
        seconds=2.0,
    )


def new_run(where: Path | str) -> RunDatabase:
    return RunDatabase.create(
        where,
        settings={"coder": "builtin", "rounds": 3, "max_usd": None},
        target=TARGET,
        environment=ENVIRONMENT,
        command="kernelwright run --suite builtin --rounds 3",
    )


def attempt(
    database: RunDatabase,
    of_task: Task,
    round: int,
    verdict: Verdict = Verdict.correct,
    eager: float | Interval | None = None,
    compile: float | None = None,
    reason: str = "",
    of: Candidate | None = None,
) -> Candidate:
    """Records one attempt at a task and returns its candidate."""
    made = of or candidate(1000 * of_task.level + round)
    found = evaluation(of_task, made, verdict, eager, compile, reason)
    advice = ADVICE if round > 1 else None
    database.record_attempt(of_task.id, round, made, advice, found, PROFILE if eager else None)
    return made


def record_example(database: RunDatabase) -> None:
    """Six tasks on two levels and one that measures nothing, with these medians vs eager:

    level 1: 4.0 and ≈1.0 correct, 0.5 correct, one build error; level 2: 2.0 correct, one not tried.
    """
    fused, even, slow, broken, wide, waiting, empty = (
        task("softmax"),
        task("relu"),
        task("matmul"),
        task("conv"),
        task("gelu_linear", level=2),
        task("attention", level=2),
        task("always_zero", level=2),
    )
    for one in (fused, even, slow, broken, wide, waiting, empty):
        database.add_task(one)
    first = attempt(database, fused, 1, eager=2.0, compile=1.0)
    attempt(database, fused, 2, Verdict.wrong_output, reason="error 7.2 on <ramp> & co")
    attempt(database, fused, 3, eager=4.0, compile=2.0, of=candidate(77, parents=(first.sha256,)))
    attempt(database, even, 1, eager=Interval(median=1.01, low=0.97, high=1.04), compile=0.5)
    attempt(database, slow, 1, eager=0.5, compile=0.5)
    attempt(database, broken, 1, Verdict.runtime_error, reason="segmentation fault")
    attempt(database, broken, 2, Verdict.build_error, reason="error: expected ';' | line 3")
    attempt(database, wide, 1, eager=2.0)
    attempt(database, empty, 1, eager=900.0)
    database.record_audit(empty.id, "output is 0 for every input", measures_nothing="the output is constant")
    for one in (fused, even, slow, broken, wide, empty):
        database.finish_task(one.id, "rounds used up")
