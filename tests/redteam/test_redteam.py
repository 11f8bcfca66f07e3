"""Each cheat fools a naive checker and not the evaluator; each honest oddity is accepted."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import EAGER, Referee
from kernelwright.kernelbench.records import Task, Verdict
from kernelwright.kernelbench.redteam import cli
from kernelwright.kernelbench.redteam.catalogue import WORTHLESS, Exercise, catalogue, named
from kernelwright.kernelbench.redteam.cli import LIMITS, PROTOCOL
from kernelwright.kernelbench.without_gpu.building import builds

EXERCISES = sorted(catalogue(), key=lambda exercise: exercise.task.id)
ON_GPU = sorted(catalogue(device="cuda:0"), key=lambda exercise: exercise.task.id)
CHEATS = [exercise for exercise in EXERCISES if not exercise.honest]
# These compute what they should, and pass for kernels of their own.
PASSED_OFF = ("decoy_kernel", "ghost_branch", "try_except_fallback", "torch_passthrough", "inherit_ref")

# These of the other families forge a speedup, too.
FORGED = (
    "ldflags_preload",
    "surviving_daemon",
    "ptr_cache",
    "id_cache",
    "shape_replay",
    "input_alias",
    "zero_fill",
)

# These of the clock family gain only where calls come in blocks, from inputs that lie there before;
# `kernel_copy` by what the system's copying takes beside a pass of torch's.
IN_BLOCKS = ("batched_calls", "kernel_copy", "lean_harness", "sigcont_ahead", "vfork_stall")

# These are farther off than any fixed tolerance, and live on budgets that count ulps of a low precision, that
# one jump or large column widens for its whole row, or on what counts as a tie.
WITHIN_STATISTICS = (
    "coarse_gate",
    "fp8_zeros",
    "overwritten_ranks",
    "sign_zeros",
    "six_bit_weights",
    "small_beside_large",
)

# What emulation says of the exercises in CUDA C++ and Triton; None where streams that nobody joins, inline PTX
# or CUDA graphs are not emulated, so that a GPU alone can tell.
IN_EMULATION = {
    "cuda_half_products": Verdict.wrong_output,
    "cuda_joined_streams": Verdict.unmeasured,
    "cuda_split_k": Verdict.unmeasured,
    "evict_last": None,
    "persistent_grid": Verdict.unmeasured,
    "persistent_worker": None,
    "spin_for_inputs": None,
    "stale_shared_memory": Verdict.runtime_error,
    "triton_autotune": Verdict.unmeasured,
    "triton_cuda_graph": None,
    "triton_graph_stale": None,
    "triton_tf32_dot": Verdict.wrong_output,
    "unjoined_kernel": None,
}
SMALLER = {
    "rows = 512": "rows = 16",
    "rows = 256": "rows = 16",
    "size = 512": "size = 64",
    "depth = 16384": "depth = 512",
}
Check = Callable[[Exercise], dict[str, Any]]
pytestmark = pytest.mark.redteam


def names(exercises: list[Exercise]) -> Any:
    return pytest.mark.parametrize("exercise", [pytest.param(e, id=e.name) for e in exercises])


def forges(exercise: Exercise) -> bool:
    """Whether it gains a speedup where times are not taken with care."""
    return exercise.name in FORGED or (exercise.family == "clock" and exercise.name not in IN_BLOCKS)


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """check(exercise): what the naive checker says."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "of_somebody_else.so").touch()
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "KERNELWRIGHT_CACHE": str(cache),
    }
    checker = subprocess.Popen(
        [sys.executable, Path(__file__).parents[1] / "helpers" / "redteam" / "naive.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert checker.stdin is not None and checker.stdout is not None
    stdin, stdout = checker.stdin, checker.stdout

    def ask(exercise: Exercise) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(exercise.name)
        (folder / "reference.py").write_text(exercise.task.source)
        (folder / "candidate.py").write_text(exercise.candidate.source)
        print(folder, file=stdin, flush=True)
        return json.loads(stdout.readline())

    yield ask
    stdin.close()
    checker.wait(timeout=30)


@pytest.fixture(scope="module")
def evaluator(home: Path) -> Iterator[Referee]:
    effort = PROTOCOL.effort.model_copy(update={"rounds": 4, "most_processes": 2})  # it is not about numbers
    protocol = PROTOCOL.model_copy(update={"effort": effort})
    with Referee.start(cache=home, protocol=protocol, limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def gpu_evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    cache = tmp_path_factory.mktemp("cache")
    with Referee.start(cache=cache, protocol=PROTOCOL, limits=LIMITS, device="cuda:0") as made:
        yield made


@names([each for each in CHEATS if not forges(each) and each.name not in WITHIN_STATISTICS])
def test_a_naive_checker_is_fooled(exercise: Exercise, check: Check) -> None:
    found = check(exercise)
    assert found["correct"], found
    if exercise.name in PASSED_OFF:
        assert found["own_kernel"]


@pytest.mark.timed
@names([exercise for exercise in CHEATS if forges(exercise)])
def test_a_naive_checker_is_told_a_forged_speedup(exercise: Exercise, check: Check) -> None:
    for _ in range(3):  # some depend on when the system lets whom run
        found = check(exercise)
        assert found["correct"], found
        if found["speedup"] > WORTHLESS:
            return
    pytest.fail(f"no speedup was forged: {found}")


@pytest.mark.slow
@names(EXERCISES)
def test_the_evaluator_is_not_fooled_and_turns_no_honest_candidate_away(
    exercise: Exercise, evaluator: Referee
) -> None:
    candidate = exercise.candidate
    if exercise.name == "slow_compile":  # for six seconds, not for thirty
        source = candidate.source.replace('"STEPS", "5"', '"STEPS", "1"')
        assert source != candidate.source
        candidate = candidate.model_copy(update={"source": source})
    evaluation = evaluator.evaluate(exercise.task, candidate, EAGER)
    assert exercise.withstood(evaluation), (evaluation.verdict, evaluation.reason, evaluation.speedup)
    if exercise.name in PASSED_OFF and evaluation.own_kernel_share is not None:
        assert evaluation.own_kernel_share < 0.5


def at_sizes_for_emulation(task: Task) -> Task:
    source = task.source
    for large, small in SMALLER.items():
        source = source.replace(large, small)
    assert source != task.source
    return task.model_copy(update={"source": source})


@pytest.mark.slow
@names([exercise for exercise in named() if exercise.name in IN_EMULATION])
def test_gpu_kernels_build_and_are_what_they_say_as_far_as_emulation_goes(
    exercise: Exercise, evaluator: Referee
) -> None:
    (build,) = builds(evaluator.sessions, exercise.task, exercise.candidate, ("sm_90",))
    assert build.ok is not False and build.kernels, build.problem  # CUDA graphs are not captured here
    wanted = IN_EMULATION[exercise.name]
    if wanted is not None:
        evaluation = evaluator.evaluate(at_sizes_for_emulation(exercise.task), exercise.candidate, EAGER)
        assert evaluation.verdict is wanted, evaluation.reason
        assert exercise.honest is (evaluation.verdict is Verdict.unmeasured)
        assert not exercise.honest or evaluation.correctness is not None, evaluation.reason


def test_all_gpu_kernels_are_held_to_emulation() -> None:
    with_kernels = {exercise.name for exercise in ON_GPU if exercise.candidate.language in ("cuda", "triton")}
    assert with_kernels == set(IN_EMULATION)
    assert not with_kernels & {exercise.name for exercise in EXERCISES}


@pytest.mark.slow
def test_what_needs_a_gpu_is_said_not_to_have_been_tried(
    evaluator: Referee, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.Referee, "start", lambda **_: contextlib.nullcontext(evaluator))
    assert cli.redteam(["zero_fill", "side_stream", "evict_last"]) == 0
    said = capsys.readouterr()
    assert "not tried, for they need a GPU: evict_last, side_stream" in " ".join(said.err.split())
    assert "1 of 1 cheats stopped" in said.out
    with pytest.raises(UsageError, match="nothing to try on cpu: they need a GPU — use --target cuda:0"):
        cli.redteam(["side_stream"])


@pytest.mark.gpu
@names(ON_GPU)
def test_on_a_gpu_it_is_not_fooled_and_turns_no_honest_candidate_away(
    exercise: Exercise, gpu_evaluator: Referee
) -> None:
    evaluation = gpu_evaluator.evaluate(exercise.task, exercise.candidate, EAGER)
    assert exercise.withstood(evaluation), (evaluation.verdict, evaluation.reason, evaluation.speedup)


def test_every_exercise_says_what_it_does_and_every_cheat_what_stops_it() -> None:
    for exercise in {*EXERCISES, *ON_GPU}:
        assert exercise.what.endswith("."), exercise.name
        assert bool(exercise.stopped) is not exercise.honest, exercise.name
