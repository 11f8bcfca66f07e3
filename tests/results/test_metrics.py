"""`kernelwright metrics` over runs that were recorded as runs are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Target, Verdict
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Profile
from kernelwright.results.lessons.metrics import caveats, selected, table
from kernelwright.results.store.database import RunDatabase
from tests.helpers.results.run_factory import TARGET, candidate, evaluation, task


def record(folder: Path, names: tuple[str, ...], candidates: int = 6, target: Target = TARGET) -> RunDatabase:
    """A run in which kernels with fewer spills are faster, and what they fuse says nothing."""
    tasks = [task(name) for name in names]
    folder.mkdir(exist_ok=True)
    database = RunDatabase.create(folder / "run.db", settings={}, target=target, tasks=tasks)
    for shift, each in enumerate(tasks):
        for number in range(candidates):
            metrics = (
                metric("bandwidth_share", 0.1 * number),
                metric("spills", 10.0 - number, "k"),
                metric("fma_share", (number + 3 * shift) % candidates / 10, "k"),
            )
            profile = Profile(metrics=metrics, bottleneck="memory", speed_of_light=0.5)
            of = candidate(number)
            found = evaluation(each, of, eager=1.0 + number)
            database.record_attempt(each.id, number, of, None, found, profile)
    return database


def test_spills_are_found_to_cost_time(tmp_path: Path) -> None:
    with record(tmp_path, ("softmax", "relu")) as database:
        selection = selected([database], 24)
    assert selection.kept == ("spills",) and selection.kind == "cpu"
    assert set(selection.candidates.values()) == {6} and len(selection.candidates) == 2
    by_name = {each.name: each for each in selection.ranked}
    assert set(by_name["spills"].rhos.values()) == {1.0}  # more of them, slower
    assert [*table(selection).columns[1].cells] == ["yes", "signs differ", "measures time"]
    assert caveats(selection) == []


def test_a_candidate_counts_once_as_it_was_measured_last_and_failures_do_not(tmp_path: Path) -> None:
    with record(tmp_path, ("softmax", "relu"), candidates=5) as database:
        first = task("softmax")
        best = candidate(4)
        worse = Profile(metrics=(metric("spills", 99.0, "k"),), bottleneck="memory", speed_of_light=0.5)
        database.record_attempt(
            first.id, 9, best, None, evaluation(first, best, eager=5.0), worse, confirms=True
        )
        wrong = candidate(7)
        failed = evaluation(first, wrong, Verdict.wrong_output)
        database.record_attempt(first.id, 10, wrong, None, failed, worse)
        selection = selected([database], 24)
    assert set(selection.candidates.values()) == {5}
    spills = next(each for each in selection.ranked if each.name == "spills")
    assert min(spills.rhos.values()) == pytest.approx(0.0) and not spills.agrees  # by hand: ranks 4 3 2 1 5


def test_two_runs_of_one_task_on_other_chips_are_two_groups(tmp_path: Path) -> None:
    mark = TARGET.fingerprint.model_copy(update={"chip": "Testium 9001"})
    other = TARGET.model_copy(update={"fingerprint": mark})
    with record(tmp_path / "a", ("relu",)) as one, record(tmp_path / "b", ("relu",), target=other) as two:
        selection = selected([one, two], 24)
    assert len(selection.candidates) == 2 and selection.chips == ("Testium 9000", "Testium 9001")


def test_too_little_and_what_cannot_be_compared_are_said(tmp_path: Path) -> None:
    with record(tmp_path / "a", ("softmax", "relu"), candidates=4) as few:
        with pytest.raises(UsageError, match=r"0 tasks have 5 .*softmax.*: 4.*more --rounds"):
            selected([few], 24)
        gpu = TARGET.model_copy(update={"device": "cuda:0"})
        with (
            record(tmp_path / "b", ("relu",), target=gpu) as other,
            pytest.raises(UsageError, match="one kind"),
        ):
            selected([few, other], 24)


def test_the_command_prints_the_table_and_keeps_the_selection(tmp_path: Path) -> None:
    record(tmp_path, ("softmax", "relu")).close()
    environment = {"KERNELWRIGHT_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "kernelwright", "metrics", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "spills" in done.stdout and "Kept 1" in done.stdout
    kept = json.loads((tmp_path / "home" / "metrics-cpu.json").read_text())
    assert kept["kept"] == ["spills"]
