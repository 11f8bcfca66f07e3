"""Acceptance itself, without a GPU: steps end when they must, nothing that was found is lost, dry runs pass."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.acceptance import packages
from tests.gpu.acceptance.bench import Bench
from tests.gpu.acceptance.records import Check, Journal, Outcome, table
from tests.gpu.acceptance.running import Step, outcome_of

ROOT = Path(__file__).parents[2]
# What an image with PyTorch for CUDA has, with what torch itself asks for.
IMAGE = {"torch", "triton", "numpy", "networkx", "jinja2", "markupsafe", "filelock", "sympy", "mpmath", "fsspec",
         "setuptools", "six", "pytz"}  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("cpu", tmp_path, tmp_path / "home", Journal(tmp_path / "stage.jsonl"))


def ended(bench: Bench, run: Callable[[Bench], None], limit_s: float = 20.0) -> Outcome:
    step = Step(run, limit_s)
    return outcome_of(step, bench.at(step.name), limit_s)


def runs(pid: int) -> bool:
    """Return True if a process is there; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_step_that_hangs_ends_with_all_that_it_has_started(bench: Bench) -> None:
    file = bench.out / "pids"

    def hangs(at: Bench) -> None:
        at.check(True, "before", "it is lost with nothing")
        orphan = f"import os, time; os.fork() and os._exit(0); os.setsid(); open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        subprocess.run([sys.executable, "-c", orphan], check=True)
        time.sleep(600)

    began = time.monotonic()
    outcome = ended(bench, hangs, limit_s=3.0)
    assert outcome.state == "failed" and 3.0 <= time.monotonic() - began < 10.0
    assert [check.name for check in bench.journal.checks()] == ["before", "limit"]
    assert not runs(int(file.read_text()))


def test_a_step_that_fails_says_why(bench: Bench) -> None:
    def raises(_: Bench) -> None:
        raise ValueError("of no use")

    def dies(_: Bench) -> None:
        os.kill(os.getpid(), 9)

    assert ended(bench, raises).state == ended(bench, dies).state == "failed"
    assert [check.what for check in bench.journal.checks()] == [
        "ValueError: of no use",
        "its process ended with signal 9",
    ]


def test_a_step_of_which_nothing_could_be_tried_has_not_passed(bench: Bench) -> None:
    def idle(at: Bench) -> None:
        at.check(None, "one", "there is no tool for it")

    assert ended(bench, idle).state == "not tried"


def test_a_run_that_was_cut_off_can_be_gone_on_from(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "stage.jsonl")
    for name, state in (
        ("a", "passed"),
        ("b", "failed"),
        ("c", "failed"),
        ("c", "passed"),
        ("a", "not tried"),
    ):
        journal.add(Outcome(name, state, 1.0))  # type: ignore[arg-type]
    with journal.file.open("a") as file:
        file.write('{"kind": "outcome", "step": "b", "sta')
    assert journal.passed() == {"a", "c"}
    lines = table([Outcome("b", "failed", 7.0)], [[Check("b", "x", True, ""), Check("b", "y", False, "1|2")]])
    assert lines[-1] == "| b | failed | 7 | 1 of 2 | y: 1/2 |"


def test_what_is_missing_is_said_with_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packages.missing(["no-such-package>=1"]) == ["no-such-package>=1"]
    assert packages.missing(["pytest>=999", "numpy"])[0].startswith("pytest>=999, not ")
    monkeypatch.setattr(packages, "version", lambda name: {"pydantic-core": "1.0"}.get(name, "999"))
    monkeypatch.setattr(
        packages, "requires", lambda name: ["pydantic-core==2.0"] if name == "pydantic" else []
    )
    assert packages.missing(["pydantic>=2.9"]) == ["pydantic-core==2.0 (of pydantic), not 1.0"]


def test_nothing_that_kernelwright_needs_is_left_out_of_what_is_carried() -> None:
    """Of what is installed here, with what that needs in turn."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    lines = (ROOT / packages.HERE / "requirements.txt").read_text().splitlines()
    carried = {line.partition("==")[0] for line in lines if not line.startswith("#")}
    left, seen = (
        [*packages.needed(), *packages.TESTS, "cuda-bindings", "nvidia-ml-py", "ninja", "packaging"],
        set(),
    )
    while left:
        requirement = Requirement(left.pop())
        name = requirement.name.lower().replace("_", "-")
        if name in seen | IMAGE or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        left += (requires(name) or ()) if not packages.missing([name]) else ()
    assert seen == carried


def dry_run(
    *words: str, before: str = "import contextlib; fake = contextlib.nullcontext()"
) -> tuple[int, str]:
    program = f"import sys; from tests.gpu.acceptance.__main__ import main; {before}\nwith fake: sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def states(out: Path, stage: int) -> dict[str, str]:
    lines = (out / f"stage-{stage}.md").read_text().splitlines()
    return {cells[1].strip(): cells[2].strip() for line in lines[6:] if (cells := line.split("|"))}


@pytest.mark.slow
@pytest.mark.builds
def test_a_dry_run_on_the_cpu(tmp_path: Path) -> None:
    steps = ["--only", "environment", "--only", "behind_the_sandbox", "--only", "truth"]
    words = ["1", "--device", "cpu", "--small", "--out", str(tmp_path)]
    status, said = dry_run(*words, *steps)
    assert status == 0 and "PASS packages" in said and "PASS candidate behind all layers" in said, said
    wanted = {"environment": "passed", "behind_the_sandbox": "passed", "truth": "not tried"}
    assert states(tmp_path, 1) == wanted
    status, said = dry_run(*words, *steps, "--skip-passed", str(tmp_path / "stage-1.jsonl"))
    assert status == 0 and said.count("it passed before") == 4, said  # in its line and in the table


@pytest.mark.builds
@pytest.mark.slow
@pytest.mark.parametrize(("stage", "step"), [(2, "other_exercises"), (3, "kernelbench")])
def test_a_dry_run_of_later_stages_on_the_cpu(stage: int, step: str, tmp_path: Path) -> None:
    status, said = dry_run(str(stage), "--device", "cpu", "--small", "--out", str(tmp_path), "--only", step)
    assert status == 0 and states(tmp_path, stage) == {step: "passed"}, said
    if stage == 3:
        table = (tmp_path / "kernelbench.md").read_text()
        assert "| builtin:level1/softmax | correct |" in table and "--only kernelbench" in table


@pytest.mark.builds
@pytest.mark.timed
def test_a_dry_run_with_a_driver_of_the_tests_own(tmp_path: Path) -> None:
    fake = "from pathlib import Path; from tests.helpers.gpu.evaluating import fake_gpu; "
    status, said = dry_run(
        *("1", "--small", "--out", str(tmp_path / "out")),
        *("--only", "environment", "--only", "behind_the_sandbox", "--only", "against_itself"),
        before=f"{fake}fake = fake_gpu(Path({str(tmp_path)!r}))",
    )
    assert "PASS driver: NVIDIA H100" in said and "PASS alone" in said, said
    found = states(tmp_path / "out", 1)
    assert found["behind_the_sandbox"] == found["against_itself"] == "passed", said
    assert status == (
        found["environment"] == "failed"
    )  # where packages of the extra `cuda` are not installed


def test_an_unknown_step_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    status, said = dry_run("2", "--out", str(tmp_path), "--only", "truth")
    assert status == 2 and "no step truth — use of tests, gpu_exercises, other_exercises" in said
