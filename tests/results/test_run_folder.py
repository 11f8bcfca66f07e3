"""A run folder belongs to one run and, while it is written, to one process."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.records import Interval
from kernelwright.results.deliverable import faster_baselines, submitted
from kernelwright.results.outputs import write_outputs
from kernelwright.results.store.folder import RunFolder, write_atomically
from kernelwright.results.store.records import RecordedAttempt
from kernelwright.results.summary import Summary
from tests.helpers.results import run_factory
from tests.helpers.results.run_factory import new_run

HOLDER = """
import pathlib, sys, time
from kernelwright.results.store.folder import RunFolder
with RunFolder.create(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs" / "today") as folder:
        assert folder.database == tmp_path / "runs/today/run.db"
        assert folder.best("level1_softmax") == tmp_path / "runs/today/best/level1_softmax.py"
        assert not folder.holds_run


def test_a_folder_that_holds_a_run_is_refused_but_resumed(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path):
        new_run(tmp_path).close()
    with pytest.raises(UsageError, match=f"already holds a run — use --resume {tmp_path} or another --out"):
        RunFolder.create(tmp_path)
    with RunFolder.resume(tmp_path) as folder:
        assert folder.holds_run


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StorageError, match="holds no run"):
            RunFolder.resume(path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_before_it_began_does_not_block_its_folder(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "run.db")
    connection.execute("PRAGMA journal_mode=WAL")  # writes the first page, no table
    connection.close()
    with RunFolder.create(tmp_path):
        new_run(tmp_path).close()
    assert RunFolder(tmp_path).holds_run


def test_a_damaged_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("no database")
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder.create(tmp_path)


def test_a_second_run_in_the_same_folder_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StorageError) as refused:
        RunFolder.create(tmp_path)
    assert f"another run (process {holder.pid}) is writing" in refused.value.message
    assert "\n" not in str(refused.value)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    RunFolder.create(tmp_path).close()


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot be written .* another --out"):
        RunFolder.create(tmp_path / "file" / "run")
    with pytest.raises(StorageError, match=r"cannot be written .* another --out"):
        RunFolder.create(tmp_path / "file")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    contents = {letter * 300_000 for letter in "ab"}
    write_atomically(path, "a" * 300_000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                write_atomically(path, content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            assert path.read_text() in contents
    finally:
        stop.set()
        writer.join()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        RunFolder(tmp_path).write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "through")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "through"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=pipe.read_bytes)
    reader.start()
    write_atomically(pipe, "through")
    reader.join()
    assert pipe.is_fifo()


def test_the_outputs_of_a_run_are_its_summary_report_and_best_kernels(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as folder, new_run(tmp_path) as database:
        run_factory.record_example(database)
        summary = write_outputs(folder, database)
    assert Summary.model_validate_json(folder.summary.read_text()) == summary
    assert folder.best("builtin_level1_softmax").read_text() == run_factory.candidate(77).source
    assert not folder.best("builtin_level1_conv").exists()  # no correct kernel
    assert folder.report.read_text().startswith("<!doctype html>")


_REFERENCE = '''"""A model that keeps its factor."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, factor: float):
        super(Model, self).__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor
'''


@pytest.mark.parametrize(
    ("compiled", "low", "submitted"), [(0.8, 0.79, True), (0.98, 0.9, False), (0.96, 0.9, True)]
)
def test_a_baseline_that_is_faster_is_submitted_beside_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: float, low: float, submitted: bool
) -> None:
    task = run_factory.task("scale").model_copy(update={"source": _REFERENCE})
    kernel = run_factory.candidate(1)
    with RunFolder.create(tmp_path) as folder, new_run(tmp_path) as database:
        database.add_task(task)
        of = run_factory.evaluation(task, kernel, eager=1.2)
        assert of.timing is not None and of.speedup is not None
        timing = of.timing.model_copy(update={"compile_us": run_factory.interval(80.0)})
        ratio = Interval(median=compiled, low=low, high=compiled + 0.05)
        speedup = of.speedup.model_copy(update={"compile": ratio, "fastest": ratio})
        evaluation = of.model_copy(update={"timing": timing, "speedup": speedup})
        database.record_attempt(task.id, 0, kernel, None, evaluation, None)
        write_outputs(folder, database)
    best = folder.best("builtin_level1_scale").read_text()
    beside = folder.best("builtin_level1_scale.kernel")
    if not submitted:
        assert best == kernel.source and not beside.exists()
        return
    assert beside.read_text() == kernel.source
    asked: list[object] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: asked.append((type(self), how)))
    module: dict[str, Any] = {}
    exec(compile(best, "best.py", "exec"), module)
    model = module["ModelNew"](3.0)
    assert asked == [(module["ModelNew"], {})]
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 3.0))
    assert f"{compiled:.2f}×" in module["__doc__"] and "torch.compile" in module["__doc__"]


def test_cuda_graphs_are_not_submitted_but_what_is_fastest_beside_them() -> None:
    task, kernel = run_factory.task("scale"), run_factory.candidate(1)
    of = run_factory.evaluation(task, kernel, eager=1.2)
    assert of.timing is not None and of.speedup is not None
    us = {"compile_us": run_factory.interval(80.0), "cuda_graphs_us": run_factory.interval(40.0)}
    ratios = {"compile": run_factory.interval(0.8), "cuda_graphs": run_factory.interval(0.4)}
    timing, speedup = of.timing.model_copy(update=us), of.speedup.model_copy(update=ratios)
    evaluation = of.model_copy(update={"timing": timing, "speedup": speedup})
    best = RecordedAttempt(
        id=1,
        task=task.id,
        round=0,
        confirms=True,
        candidate=kernel,
        advice=None,
        evaluation=evaluation,
        profile=None,
    )
    assert [each.baseline for each in faster_baselines(best)] == ["CUDA graphs", "torch.compile"]
    instead = submitted(best)
    assert instead is not None and instead.baseline == "torch.compile"
