"""Problems of KernelBench-Hard and references of MultiKernelBench."""

import json
from pathlib import Path

import pytest

from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.errors import TaskError, UsageError
from kernelwright.kernelbench.records import Size, Task
from kernelwright.kernelbench.sources import resolve
from tests.helpers.foreign_tasks import HARD, called, loaded, written
from tests.helpers.task_text import task_text

GROUPS = """import torch
import json
import os


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_input_groups():
    json_path = os.path.join(os.path.dirname(__file__), "add.json")
    with open(json_path, "r") as f:
        cases = [json.loads(line) for line in f if line.strip()]
    groups = []
    for case in cases:
        groups.append([torch.randn(case["inputs"][0]["shape"])])
    return groups


def get_init_inputs():
    return []
"""


def one(path: Path) -> Task:
    (task,) = resolve([str(path)])
    return task


class TestKernelBenchHard:
    def test_shapes_are_the_sizes_whatever_their_case(self, tmp_path: Path) -> None:
        task = one(written(tmp_path / "01_scale", HARD))
        assert [task] == [one(tmp_path / "01_scale" / name) for name in ("reference.py",)]
        assert task.id == "file:01_scale"
        assert task.workload == (Size(constants={"ROWS": "4"}), Size(constants={"ROWS": "6"}))
        assert tuple(called(task.at(task.workload[1]))[1].shape) == (6, 8)

    def test_bans_and_unknown_shapes_are_noted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        shapes = 'SHAPES = [{"rows": 4, "extreme": True}, {"rows": 4, "extreme": False}, {"rows": 5}]'
        task = one(written(tmp_path / "a", {**HARD, "shapes.py": shapes}))
        assert task.source.startswith(
            "# Note: there a solution may not use torch.mul; that is not checked here.\n"
            "# Note: its sizes set extreme, and the reference has no such constant.\n"
            '"""Twice x."""\n'
        )
        assert "no such constant" in caplog.text
        assert [size.weight for size in task.workload] == [2, 1]

    def test_a_solution_is_a_candidate(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "a", {**HARD, "solution.py": HARD["reference.py"]})
        assert "ModelNew" in vars(loaded(candidate_from_file(folder / "solution.py").source))
        (folder / "solution.py").write_text("x = 1")
        with pytest.raises(UsageError, match=r"solution\.py defines no class Model — define it"):
            candidate_from_file(folder / "solution.py")

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            (
                "shapes.py",
                "SHAPES = make()",
                r"shapes\.py has no list SHAPES of literals — write shapes\.py as SHAPES",
            ),
            ("shapes.py", "SHAPES = [1]", r"shapes\.py: SHAPES is no list of dictionaries"),
            ("problem.yaml", "{", r"problem\.yaml is not YAML: line 1"),
            ("reference.py", "", r"defines no class Model"),
        ],
    )
    def test_a_damaged_problem_is_refused(self, name: str, text: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=message):
            one(written(tmp_path / "a", {**HARD, name: text}))

    def test_a_problem_without_a_reference_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"08_metal has no reference\.py — give a problem that has one"):
            one(written(tmp_path / "08_metal", {"problem.yaml": "name: metal\n"}))


class TestMultiKernelBench:
    def test_a_checkout_a_category_and_a_file_are_named(self, tmp_path: Path) -> None:
        root = written(
            tmp_path, {"reference/pooling/max_pool.py": task_text(), "reference/loss/mse.py": task_text()}
        )
        for path in (root, root / "reference"):
            assert [task.id for task in resolve([str(path)])] == ["file:mse", "file:max_pool"]
        assert (
            one(root / "reference" / "loss").id
            == one(root / "reference" / "loss" / "mse.py").id
            == "file:mse"
        )

    def test_cases_of_a_json_file_are_the_sizes(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cases = [{"inputs": [{"name": "x", "shape": shape}]} for shape in ([2, 3], [0, 4], [5])]
        lines = "".join(f"{json.dumps(case)}\n" for case in cases)
        root = written(tmp_path, {"reference/npu/add.py": GROUPS, "reference/npu/add.json": lines})
        task = one(root / "reference" / "npu" / "add.py")
        assert [tuple(called(task.at(size))[0][0].shape) for size in task.workload] == [(2, 3), (5,)]
        assert "open(" not in task.source and "__file__" not in task.source
        assert "1 of 3 cases are left out: a tensor of them is empty" in caplog.text
        (root / "reference" / "npu" / "add.json").write_text("{\n")
        with pytest.raises(UsageError, match=r"add\.json line 1 is not JSON"):
            one(root / "reference" / "npu" / "add.py")

    def test_a_file_that_is_no_task_is_refused(self, tmp_path: Path) -> None:
        root = written(tmp_path, {"reference/loss/mse.py": "class Model: pass\n"})
        with pytest.raises(UsageError, match=r"mse\.py defines no function get_inputs — leave it out"):
            resolve([str(root)])


def test_other_folders_are_folders(tmp_path: Path) -> None:
    written(tmp_path, {"a/b.py": task_text(), "a/notes.yml": "x: 1"})
    with pytest.raises(UsageError, match=r"is a folder — name the files in it"):
        resolve([str(tmp_path / "a")])
    with pytest.raises(TaskError, match=r"defines no class Model"):
        resolve([str(written(tmp_path, {"c.py": "x = 1"}) / "c.py")])
