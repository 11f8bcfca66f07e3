"""Run folders of KernelBench: what is read of them, and what its own scripts read of ours."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Task
from kernelwright.results.archives.kernelbench_runs import AUDIT, samples, write
from kernelwright.results.archives.reading import read_archive
from kernelwright.results.cli import report as report_command
from kernelwright.results.report.contents import RunReport
from kernelwright.results.report.formats import ReportFormat
from kernelwright.results.store.database import RunDatabase
from tests.helpers.auditing import result, run_folder
from tests.helpers.results.run_factory import TARGET, candidate, evaluation


def test_kernels_are_read_with_what_is_claimed_of_them(tmp_path: Path) -> None:
    claims = {"1": [result(True, 2.0, 5.0), result(False, sample=1)], "2": [result(True)]}
    folder = run_folder(
        tmp_path, {(1, 0): "a = 1", (1, 1): "b = 1", (2, 0): "c = 1", (10, 0): "d = 1"}, claims
    )
    (folder / "level_1_problem_1_sample_0_prompt.txt").write_text("not a kernel")
    found = read_archive(folder)
    assert [kernel.name for kernel in found.kernels] == ["1/1", "1/1#1", "1/2", "1/10"]
    first, second, third, last = (kernel.claim for kernel in found.kernels)
    assert (first.correct, first.eager, first.hardware) == (True, 2.5, "NVIDIA A100")
    assert (second.correct, second.eager) == (False, None)
    assert (third.correct, third.eager) == (True, None)  # upstream has the reference's time elsewhere
    assert last.correct is None
    assert found.left_out == ()


def test_results_of_before_samples_are_one_a_problem(tmp_path: Path) -> None:
    found = read_archive(run_folder(tmp_path, {(3, 0): "a = 1"}, {"3": result(True)}))
    assert found.kernels[0].claim.correct is True


def test_what_their_gpu_had_no_memory_for_is_not_claimed_wrong(tmp_path: Path) -> None:
    no_memory = result(False) | {
        "metadata": {"runtime_error": "CUDA out of memory. Tried to allocate 1.50 GiB."}
    }
    path = run_folder(tmp_path, {(1, 0): "", (2, 0): ""}, {"1": no_memory, "2": result(False)})
    assert [kernel.claim.correct for kernel in read_archive(path).kernels] == [None, False]


def test_what_cannot_be_read_is_a_line_and_the_rest_is_read(tmp_path: Path) -> None:
    claims = {
        "1": [result(True)],
        "2": [{"correctness": "perhaps"}],
        "all": [result(True)],
        "9": [result(True)],
    }
    folder = run_folder(tmp_path, {(1, 0): "a = 1", (2, 0): "b = 1"}, claims)
    (folder / "level_1_problem_3_sample_0_kernel.py").write_bytes(b"\xff\xfe\x00")
    found = read_archive(folder)
    assert [kernel.name for kernel in found.kernels] == ["1/1", "1/2"]
    lines = "\n".join(found.left_out)
    assert "problem 2: correctness" in lines and "'all' is no number of a problem" in lines
    assert "level_1_problem_3_sample_0_kernel.py cannot be read" in lines
    assert "1 results are of kernels that are not there" in lines
    assert len(found.left_out) == 4


def test_a_damaged_file_of_results_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, {(1, 0): "a = 1"})
    (folder / "eval_results.json").write_text('{"1": [')
    with pytest.raises(UsageError, match=r"eval_results.json is damaged"):
        read_archive(folder)


def test_two_runs_are_not_one_archive(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        run_folder(tmp_path / name, {(1, 0): "a = 1"}).rename(tmp_path / name / "level1")
    found = read_archive(tmp_path / "first")  # a folder of folders of levels
    assert len(found.kernels) == 1
    (tmp_path / "first" / "level1").rename(tmp_path / "first_level1")
    (tmp_path / "second" / "level1").rename(tmp_path / "second_level1")
    with pytest.raises(UsageError, match="the same sample of the same problem"):
        read_archive(tmp_path)


def test_a_folder_without_kernels_and_no_folder_say_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no file level_L_problem_P_sample_S_kernel\.py — give a run folder"
    ):
        read_archive(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        read_archive(tmp_path / "nowhere")


def recorded(folder: Path, settings: dict[str, object]) -> RunReport:
    """A run with two attempts at a problem of level 1, one at one of level 2, and one at another suite's."""
    tasks = [Task(id=id, level=level, source=f"# {id}") for id, level in
             (("kernelbench:1/7", 1), ("hf:KernelBench:2/40", 2), ("builtin:level1/softmax", 1))]  # fmt: skip
    with RunDatabase.create(folder / "run.db", settings=settings, target=TARGET, tasks=tasks) as database:
        for number, (task, eager) in enumerate(
            [(tasks[0], 2.0), (tasks[0], 3.0), (tasks[1], 1.5), (tasks[2], 2.0)]
        ):
            made = candidate(number)
            round = number if number < 2 else 0
            floor = 10.0 if task is tasks[0] else None
            found = evaluation(task, made, eager=eager, floor=floor)
            database.record_attempt(task.id, round, made, None, found, None)
        return RunReport.read(database)


def test_the_best_kernels_of_a_run_are_written_as_upstream_s_scripts_read_them(tmp_path: Path) -> None:
    report = recorded(tmp_path, {})
    first, second = write(samples(report), tmp_path / "for_upstream")
    assert (first.name, second.name) == ("level1", "level2")
    assert (first / "level_1_problem_7_sample_0_kernel.py").read_text() == candidate(1).source
    results = json.loads((first / "eval_results.json").read_text())
    (entry,) = results["7"]
    assert (entry["sample_id"], entry["compiled"], entry["correctness"]) == (0, True, True)
    assert entry["runtime"] == pytest.approx(100 / 3 / 1e3)  # in ms
    assert entry["ref_runtime"] == pytest.approx(0.1)
    assert entry["metadata"]["hardware"] == TARGET.fingerprint.chip
    assert entry["metadata"]["speedup_eager"][1] == pytest.approx(3.0)
    assert entry["metadata"]["speed_of_light_score"] == pytest.approx(90 / (90 + 100 / 3 - 10))
    unknown = json.loads((second / "eval_results.json").read_text())["40"][0]
    assert "speed_of_light_score" not in unknown["metadata"]
    again = read_archive(tmp_path / "for_upstream")
    assert [kernel.name for kernel in again.kernels] == ["1/7", "2/40"]
    assert [kernel.claim.eager for kernel in again.kernels] == pytest.approx([3.0, 1.5])
    assert {kernel.claim.device for kernel in again.kernels} == {"cpu"}


def test_the_command_writes_run_folders_into_a_new_folder(tmp_path: Path) -> None:
    recorded(tmp_path, {})
    app = typer.Typer()
    app.command("report")(report_command)
    app.command("other")(lambda: None)
    words = ["report", str(tmp_path), "--format", "kernelbench"]
    done = CliRunner().invoke(app, [*words, "--output", str(tmp_path / "theirs")])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [f"Written: {tmp_path}/theirs/level{level}" for level in (1, 2)]
    for more, said in (
        ([], "the format kernelbench is a folder"),
        (["--output", str(tmp_path / "theirs")], "exists already"),
    ):
        refused = CliRunner().invoke(app, [*words, *more])
        assert isinstance(refused.exception, UsageError) and said in refused.exception.message


def test_a_run_without_problems_of_kernelbench_has_no_such_folder(tmp_path: Path) -> None:
    with RunDatabase.create(tmp_path / "run.db", settings={}, target=TARGET) as database:
        database.add_task(Task(id="builtin:level1/softmax", level=1, source=""))
    with pytest.raises(UsageError, match="has no kernel for a problem of KernelBench"):
        report_command(str(tmp_path), format=ReportFormat.kernelbench, output=tmp_path / "theirs")


def test_of_an_audit_every_sample_is_written(tmp_path: Path) -> None:
    found = samples(recorded(tmp_path, {AUDIT: {}}))
    assert [(each.level, each.problem, each.sample) for each in found] == [(1, 7, 0), (1, 7, 1), (2, 40, 0)]


def test_a_draw_is_the_same_every_time_and_in_the_archive_s_order(tmp_path: Path) -> None:
    archive = read_archive(run_folder(tmp_path, {(problem, 0): "" for problem in range(1, 41)}))
    drawn = [kernel.problem for kernel in archive.drawn(12).kernels]
    assert drawn == [kernel.problem for kernel in archive.drawn(12).kernels] == sorted(set(drawn))
    assert len(drawn) == 12 and drawn != list(range(1, 13))
    assert archive.drawn(99) == archive
