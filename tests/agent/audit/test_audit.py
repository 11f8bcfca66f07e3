"""Audits with a pool that believes files: what is recorded, what fails alone, and what goes on after kill -9."""

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from kernelwright.agent.audit.audit import Audit, grades
from kernelwright.agent.audit.plan import AuditPlan
from kernelwright.agent.audit.report import markdown, table
from kernelwright.agent.options.run import RunConfig
from kernelwright.kernelbench.errors import MissingPrerequisite, StorageError, UsageError
from kernelwright.results.archives.kernelbench_runs import samples, write
from kernelwright.results.archives.reading import read_archive
from kernelwright.results.report.contents import RunReport
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskState
from tests.helpers.auditing import GradingDouble, begun, checkout, cuda_l1, result, run_folder
from tests.helpers.conversing import file


def audited(
    folder: Path, archive: Path, pool: GradingDouble, kernelbench_dir: Path | None = None
) -> tuple[RunDatabase, AuditPlan, list[str], bool]:
    """An audit, gone through once, with what it said."""
    folder.mkdir(exist_ok=True)
    database, plan = begun(folder, archive, kernelbench_dir)
    said: list[str] = []
    complete = Audit(
        database, pool, plan, ("eager",), lambda number, line: said.append(f"{number} {line}")
    ).execute()
    return database, plan, said, complete


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Kernels of three problems, and one of a problem that there is not, with claims of each kind."""
    claims = {
        "1": [result(True, 2.0, 4.0), result(False, sample=1)],
        "2": [result(True, 1.0, 3.0)],
        "3": [result(True, 1.0, 9.0)],
        "4": [result(True)],
    }
    kernels = {
        (1, 0): file(2.0),
        (1, 1): file(1.5),
        (2, 0): file("the sums"),
        (3, 0): file(0.5),
        (4, 0): file(2.0),
    }
    return run_folder(tmp_path, kernels, claims)


def test_every_kernel_is_graded_against_its_claim(tmp_path: Path, theirs: Path) -> None:
    database, plan, said, complete = audited(tmp_path / "audit", theirs, GradingDouble(), checkout(tmp_path))
    with database:
        found = {grade.kernel.name: grade for grade in grades(database, plan)}
        assert complete and len(said) == 4
        assert {name: grade.against_claim for name, grade in found.items()} == {
            "1/1": "2.00× as claimed",
            "1/1#1": "claimed wrong, correct",
            "1/2": "claimed correct, wrong output",
            "1/3": "claimed 9.00×, measured 0.50×",
            "1/4": "claimed correct, not checked",
        }
        assert found["1/4"].why_not == "unknown task kernelbench:1/4"
        assert found["1/1"].score == pytest.approx(2 / 3, abs=0.01)  # twice as fast, with a floor near 0
        assert all(entry.state is TaskState.done for entry in database.tasks())
        upstream = write(samples(RunReport.read(database)), tmp_path / "upstream")
    results = json.loads((upstream[0] / "eval_results.json").read_text())
    assert [entry["correctness"] for entry in results["1"]] == [True, True]
    assert results["2"][0]["runtime"] == -1.0


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_fits_its_terminal(tmp_path: Path, theirs: Path, width: int) -> None:
    database, plan, *_ = audited(tmp_path / "audit", theirs, GradingDouble(), checkout(tmp_path))
    with database:
        found, run = grades(database, plan), database.run
    console = Console(file=io.StringIO(), width=width)
    console.print(table(found, width))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "5 kernels: 3 correct, 1 not graded, 1 wrong output" in text
    assert "Of 5 claims: 1 claimed correct, and is not" in " ".join(text.split())
    row = next(line for line in text.splitlines() if line.strip().startswith("1/3"))
    assert "0.50× [0.49" in row and "90%" in row
    assert "claimed 9.00×, measured 0.50×" in row or width == 80
    page = markdown(found, plan.archive, run)
    assert "| 1/3 | correct | 0.50× [0.49, 0.51] |" in page and "NVIDIA A100" in page
    emulated = run.model_copy(update={"target": run.target.model_copy(update={"chips": ("sm_90",)})})
    assert "no GPU is here" in markdown(found, plan.archive, emulated)
    for device, said in (("cpu", "| times | of this CPU, to which no claim of a GPU"), ("cuda:0", "")):
        on = run.model_copy(update={"target": run.target.model_copy(update={"device": device})})
        page = markdown(found, plan.archive, on)
        assert said in page and ("| times |" in page) == bool(said)


@pytest.mark.slow
def test_one_that_crashes_does_not_stop_the_others(tmp_path: Path) -> None:
    """A thousand files, half of which make the machine, the evaluator or their task fail."""
    faults = ("the machine", "the evaluator", "the sums", "a crash")
    kernels = {
        number: file(2.0) if number % 2 else file(faults[number // 2 % 4]) for number in range(1, 1001)
    }
    archive = cuda_l1(tmp_path / "many.json", kernels)
    database, plan, said, complete = audited(tmp_path / "audit", archive, GradingDouble())
    with database:
        found = grades(database, plan)
        assert len(said) == 1000 and all("\n" not in line for line in said)
        assert not complete
        assert sum(grade.verdict == "correct" for grade in found) == 500
        left = [grade for grade in found if grade.verdict == "not graded"]
        assert len(left) == 250 and {grade.why_not for grade in left} == {"left for --resume"}
        # Another time, with a machine that works, only these are evaluated.
        pool = GradingDouble()
        assert not Audit(database, pool, plan, ("eager",)).execute()
        assert len(pool.evaluated) == 250


def test_a_task_that_fails_is_tried_once_and_its_kernels_say_so(tmp_path: Path) -> None:
    kernels = {(1, sample): file("the task") for sample in range(6)} | {(2, 0): file(2.0)}
    archive = run_folder(tmp_path, kernels)
    pool = GradingDouble()
    database, plan, said, complete = audited(tmp_path / "audit", archive, pool, checkout(tmp_path))
    with database:
        assert complete and len(said) == 7
        found = grades(database, plan)
        assert [grade.verdict for grade in found] == ["not graded"] * 6 + ["correct"]
        assert found[0].why_not == "the task fails: its inputs raise — correct it"
    assert len(pool.evaluated) <= 1 + 2  # one for each slot, and the other task's


@pytest.mark.slow
def test_an_audit_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    archive = cuda_l1(tmp_path / "some.json", {number: file(number) for number in range(1, 13)})
    process = subprocess.Popen([sys.executable, "-m", "tests.helpers.auditing", str(folder), str(archive)])
    log, deadline = folder / "evaluated", time.monotonic() + 60
    while not log.exists() or len(log.read_text().splitlines()) < 5:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    archive.unlink()  # the audit has a copy
    with RunDatabase.open(folder / "run.db") as before:
        kept = sum(before.evaluations().values())
    assert 3 <= kept < 12
    pool = GradingDouble()
    database, plan, _, complete = audited(folder, archive, pool)
    with database:
        assert complete and len(pool.evaluated) == 12 - kept
        assert {grade.verdict for grade in grades(database, plan)} == {"correct"}


def test_samples_with_another_reference_are_not_held_against_the_first_one_s(tmp_path: Path) -> None:
    archive = cuda_l1(tmp_path / "two.json", {1: file(2.0)})
    other = json.loads(archive.read_text())
    other["ref_code"] += "\n# another\n"
    archive.write_text(archive.read_text() + "\n" + json.dumps(other))
    _, plan = begun(tmp_path, archive)
    assert list(plan.without) == ["1/1#1"]


def test_a_reference_that_is_no_task_is_a_line(tmp_path: Path) -> None:
    archive = cuda_l1(tmp_path / "two.json", {1: file(2.0), 2: file(2.0)})
    first, second = archive.read_text().splitlines()
    archive.write_text(first + "\n" + json.dumps({**json.loads(second), "ref_code": "class Other: ..."}))
    _, plan = begun(tmp_path, archive)
    assert "cuda-l1:1/2" in plan.without["1/2"] and list(plan.tasks) == ["1/1"]


def test_without_a_checkout_a_run_folder_cannot_be_graded(
    tmp_path: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNELBENCH_DIR", raising=False)
    with pytest.raises(MissingPrerequisite, match="no KernelBench checkout"):
        begun(tmp_path / "audit", theirs)


def test_a_plan_that_is_missing_or_damaged_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no audit"):
        AuditPlan.read(tmp_path)
    (tmp_path / "archive.json").write_text('{"archive": ')
    with pytest.raises(StorageError, match="is damaged, or of another version"):
        AuditPlan.read(tmp_path)


def test_an_audit_is_not_gone_on_with_as_a_run(tmp_path: Path) -> None:
    database, _ = begun(tmp_path, cuda_l1(tmp_path / "one.json", {1: file(2.0)}))
    with database, pytest.raises(StorageError, match="kernelwright audit --resume"):
        RunConfig.recorded(database)


def test_an_empty_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(UsageError, match="holds no kernel"):
        read_archive(tmp_path / "none.json")
