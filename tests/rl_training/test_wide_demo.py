"""The wide demo as a whole: on simulated times, ended anywhere and resumed; and on the real evaluator."""

import json
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

pytest.importorskip("trl")

from safetensors.torch import load_file

from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.rl_training.demo.wide.claim import CHANCE, POLICY, SEARCH, VALUE, compared
from kernelwright.rl_training.demo.wide.demo import WideDemo
from kernelwright.rl_training.demo.wide.report import write
from kernelwright.rl_training.demo.wide.settings import SHORT_WIDE
from kernelwright.rl_training.demo.wide.trial import WideResult, results_in
from kernelwright.rl_training.tracking.run import tracked
from kernelwright.rl_training.trajectory import read
from tests.helpers.results import run_factory
from tests.helpers.rl_training.simulated_times import SimulatedPool

pytestmark = [pytest.mark.slow, pytest.mark.training, pytest.mark.timeout(1800)]


class Ended(BaseException):
    """Stands for kill -9: nothing catches it."""


class EndingPool(SimulatedPool):
    """Pool with which everything ends after some evaluations."""

    left: int = 0

    def submit(
        self,
        task: Task,
        candidate: Candidate,
        measurement: Measurement = Measurement(),
        client: str = "",
    ) -> Future[Evaluation]:
        self.left -= 1
        if self.left < 0:
            raise Ended
        return super().submit(task, candidate, measurement, client)


def ordered(results: list[WideResult]) -> list[WideResult]:
    """Sort results, of which some searches are made side by side."""
    return sorted(results, key=lambda each: (each.method, each.seed, each.task))


def demo(out: Path, left: int) -> tuple[list[WideResult], EndingPool]:
    made = WideDemo(SHORT_WIDE, out, print)
    out.mkdir(exist_ok=True)
    pool = EndingPool({each.task.id: each.space for each in made.tasks.all})
    pool.left = left
    made.on(pool, run_factory.TARGET)
    return results_in(out / "results.jsonl"), pool


def test_what_is_ended_anywhere_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole, pool = demo(tmp_path / "whole", 10_000)
    methods = {(each.method, each.kind) for each in whole}
    assert methods == {(m, kind) for m in (POLICY, CHANCE, VALUE, SEARCH) for kind in ("held out", "suite")}
    ended, starts = tmp_path / "ended", 0
    ended.mkdir()
    (ended / "tasks.json").write_text((tmp_path / "whole" / "tasks.json").read_text())
    while True:
        starts += 1
        try:
            found, _ = demo(ended, pool.asked // 4 + 1)
        except Ended:
            continue
        break
    assert 3 < starts < 12 and ordered(found) == ordered(whole)
    before, after = (
        load_file(out / "seed-0" / "rl" / "policy" / "model.safetensors")
        for out in (tmp_path / "whole", ended)
    )
    assert all((before[name] == after[name]).all() for name in before)
    replies = [
        turn.reply
        for file in sorted((ended / "seed-0" / "rl" / "trajectories").iterdir())
        for made in read(file)
        for turn in made.turns
    ]
    assert len(replies) == SHORT_WIDE.evaluations and all("k0:" in reply for reply in replies)


def test_the_short_form_on_this_machine(tmp_path: Path) -> None:
    """Real kernels and times: all methods are tried, every kernel is right, and what was claimed is judged."""
    out = tmp_path / "wide"
    words = ["train", "demo", "--space", "wide", "--short", "--json", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", *words], capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = [WideResult.model_validate(each) for each in json.loads(done.stdout)["results"]]
    assert {each.method for each in results} == {POLICY, CHANCE, VALUE, SEARCH}
    right = [each.valid / len(each.lows) for each in results if each.kind == "held out"]
    assert sum(right) / len(right) > 0.9
    page = (out / "table.md").read_text()
    assert "policy, best of 2, above random schedules, best of 6" in page
    assert (out / "curves.svg").read_text().startswith("<svg")
    assert (out / "claim.md").stat().st_mtime <= (out / "results.jsonl").stat().st_mtime


def test_a_page_says_what_came_of_each_comparison(tmp_path: Path) -> None:
    made = WideDemo(SHORT_WIDE, tmp_path, print)
    with tracked(tmp_path, "demo", SHORT_WIDE, {"data": 0}, {}) as folder:
        pool = SimulatedPool({each.task.id: each.space for each in made.tasks.all})
        claim, results = made.on(pool, run_factory.TARGET)
        tables = write(folder, claim, results)
    assert sum("**" in line for line in tables) == len(compared(claim, results)) * 2
    assert "Not all that was claimed is shown" in (tmp_path / "table.md").read_text()
