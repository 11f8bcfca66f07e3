"""Files of CUDA-L1's form: one record a line, lists, lists by level, and damaged ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.archives.reading import read_archive

RECORD = {"level_id": 1, "task_id": 19, "ref_code": "class Model: ...", "custom_code": "class ModelNew: ..."}
SCORED = {**RECORD, "score_default": 1.5, "score_torch_compile_default": 1.25, "cudnn_code": "unread"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(SCORED),
        "\n".join(map(json.dumps, [SCORED, {**SCORED, "task_id": 20}])),
        json.dumps([SCORED]),
        json.dumps({"1": [{name: value for name, value in SCORED.items() if name != "level_id"}]}),
    ],
)
def test_a_record_is_a_kernel_with_its_reference_and_its_claims(tmp_path: Path, text: str) -> None:
    (tmp_path / "h100.json").write_text(text)
    kernel = read_archive(tmp_path / "h100.json").kernels[0]
    assert (kernel.name, kernel.source, kernel.reference) == (
        "1/19",
        "class ModelNew: ...",
        "class Model: ...",
    )
    assert (kernel.claim.correct, kernel.claim.eager, kernel.claim.compile) == (True, 1.5, 1.25)


def test_a_score_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "h100.json").write_text(json.dumps({"3": [{**RECORD, "score": "2.750"}]}))
    kernel = read_archive(tmp_path / "h100.json").kernels[0]
    assert kernel.claim.eager == 2.75


def test_problems_without_a_kernel_are_counted(tmp_path: Path) -> None:
    none = [{**RECORD, "task_id": task, "custom_code": None} for task in range(7)]
    (tmp_path / "h100.json").write_text("\n".join(map(json.dumps, [SCORED, *none])))
    found = read_archive(tmp_path / "h100.json")
    assert len(found.kernels) == 1
    assert found.left_out == ("7 problems have no kernel: 1/0, 1/1, 1/2, 1/3, 1/4 and 2 more",)


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        ('{"level_id": 1, "task', "line 2: damaged JSON: Unterminated string"),
        ({**SCORED, "task_id": None}, "line 2: task_id: "),
        ({**SCORED, "score_default": -1}, "line 2: score_default: "),
        ({**SCORED, "custom_code": "\ud800"}, "line 2: custom_code: "),
        ([1], "line 2: the record: "),
    ],
)
def test_a_damaged_record_is_a_line_and_the_others_are_read(tmp_path: Path, damaged: Any, words: str) -> None:
    lines = [json.dumps(SCORED), damaged if isinstance(damaged, str) else json.dumps(damaged)]
    (tmp_path / "h100.json").write_text("\n".join(lines))
    found = read_archive(tmp_path / "h100.json")
    assert len(found.kernels) == 1
    (line,) = found.left_out
    assert words in line and "\n" not in line


def test_two_kernels_of_one_problem_are_its_samples(tmp_path: Path) -> None:
    (tmp_path / "both.json").write_text(json.dumps([SCORED, SCORED]))
    assert [kernel.name for kernel in read_archive(tmp_path / "both.json").kernels] == ["1/19", "1/19#1"]


@pytest.mark.parametrize(
    "text", ["", "class ModelNew: ...", "{}", '{"kernels": 3}', "[]", "3", "[" * 100_000]
)
def test_what_holds_no_kernel_says_what_to_give(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(UsageError) as raised:
        read_archive(tmp_path / "file.json")
    assert raised.value.fix.startswith("give a") and "\n" not in raised.value.message
