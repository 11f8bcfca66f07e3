"""Definitions and workloads of FlashInfer-Bench and SOL-ExecBench as tasks."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size, Task
from kernelwright.kernelbench.sources import resolve
from tests.helpers.foreign_tasks import SCALED_NORM, called, definition_folder, row


def one(path: Path, *sizes: str) -> Task:
    (task,) = resolve([str(path)], sizes=sizes)
    return task


def changed(**parts: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SCALED_NORM), **parts}


class TestTheTask:
    def test_is_a_file_that_needs_no_other(self, tmp_path: Path) -> None:
        folder = definition_folder(tmp_path / "norm", SCALED_NORM, [row(8), row(3)])
        task = one(folder)
        assert task.id == "file:scaled_norm_d64"
        assert task.workload == (Size(constants={"rows": "8"}), Size(constants={"rows": "3"}))
        (x, weight, eps), y = called(task)
        assert (x.dtype, tuple(x.shape)) == (torch.bfloat16, (8, 64))
        assert (weight.dtype, tuple(weight.shape), eps) == (torch.float32, (32,), 1e-6)
        assert torch.allclose(y, x[:, :32].float() / (1 + eps) ** 0.5 * weight)
        assert [tuple(called(task.at(size))[1].shape) for size in task.workload] == [(8, 32), (3, 32)]

    def test_reads_well(self, tmp_path: Path) -> None:
        source = one(definition_folder(tmp_path, SCALED_NORM, [row(8)])).source
        assert source.startswith(
            '"""scaled_norm_d64.\n\nRows by their norm, times a weight.\n\nInputs: x: bfloat16[rows, width], '
        )
        assert (
            "import torch\nfrom torch import nn\nimport math\n\nrows = 8\nwidth = 64\nhalf = width // 2\n"
            in source
        )
        assert "# The half that counts.\ndef first(x):" in source
        assert "    def forward(self, x, weight, eps):\n        return run(x, weight, eps)\n" in source

    def test_is_the_same_by_either_path(self, tmp_path: Path) -> None:
        folder = definition_folder(tmp_path, SCALED_NORM, [row(8), row(3)])
        assert one(folder) == one(folder / "definition.json")

    def test_of_a_data_set_has_its_workload_there(self, tmp_path: Path) -> None:
        for name, rows in (("a_d64", 5), ("b_d64", 6)):
            file = tmp_path / "definitions" / "norm" / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(changed(name=name)))
            workloads = tmp_path / "workloads" / "norm" / f"{name}.jsonl"
            workloads.parent.mkdir(parents=True, exist_ok=True)
            trace = {"definition": name, "solution": None, "workload": row(rows), "evaluation": None}
            workloads.write_text(json.dumps(trace))
        assert [task.id for task in resolve([str(tmp_path)])] == ["file:a_d64", "file:b_d64"]
        task = one(tmp_path / "definitions" / "norm" / "b_d64.json")
        assert "rows = 6\n" in task.source and not task.workload

    def test_of_equal_sizes_counts_them(self, tmp_path: Path) -> None:
        task = one(definition_folder(tmp_path, SCALED_NORM, [row(8), row(3), row(8)]))
        assert task.workload == (
            Size(constants={"rows": "8"}, weight=2), Size(constants={"rows": "3"})
        )  # fmt: skip

    def test_has_scalars_that_differ_as_axes(self, tmp_path: Path) -> None:
        task = one(definition_folder(tmp_path, SCALED_NORM, [row(8), row(8, eps=0.5)]))
        assert task.axes == ("eps",)
        assert called(task.at(task.workload[1]))[0][2] == 0.5

    def test_without_a_workload_takes_sizes_from_options(self, tmp_path: Path) -> None:
        folder = definition_folder(tmp_path, SCALED_NORM, None)
        with pytest.raises(UsageError, match=r"no workload that says what rows is.* --size rows=…,eps=…"):
            one(folder)
        task = one(folder, "rows=4,eps=1e-5", "rows=5,eps=1e-5")
        assert [size.constants["rows"] for size in task.workload] == ["4", "5"]

    def test_renames_an_axis_with_the_name_of_something_else(self, tmp_path: Path) -> None:
        axes = {"math": {"type": "var"}, "hidden": {"type": "const", "value": 4}}
        definition = changed(
            axes=axes,
            inputs={"x": {"shape": ["math", "hidden"], "dtype": "float32"}},
            outputs={"y": {"shape": ["math", "hidden"], "dtype": "float32"}},
            reference="import math\n\ndef run(x):\n    return x * math.pi",
        )
        task = one(definition_folder(tmp_path, definition, [{"axes": {"math": 3}}]))
        assert "math_size = 3\nhidden_size = 4\n" in task.source
        assert tuple(called(task)[1].shape) == (3, 4)

    @pytest.mark.parametrize(
        ("dtype", "shape", "check"),
        [
            ("int32", ["rows"], lambda x: x.dtype == torch.int32 and int(x.min()) >= -1024),
            ("int8", [], lambda x: x.dtype == torch.int8 and x.dim() == 0),
            ("bool", ["rows"], lambda x: x.dtype == torch.bool),
            (
                "float8_e4m3fn",
                ["rows"],
                lambda x: x.dtype == torch.float8_e4m3fn and x.float().abs().max() <= 2,
            ),
            ("float64", ["rows"], lambda x: x.dtype == torch.float64),
        ],
    )
    def test_draws_inputs_of_each_dtype(
        self, dtype: str, shape: list[str], check: Any, tmp_path: Path
    ) -> None:
        definition = changed(
            inputs={"x": {"shape": shape, "dtype": dtype}}, reference="def run(x):\n    return x"
        )
        (x,), y = called(one(definition_folder(tmp_path, definition, [{"axes": {"rows": 99}}])))
        assert check(x) and y.dtype == x.dtype

    def test_has_inputs_from_the_definitions_own_function(self, tmp_path: Path) -> None:
        make = "\n\ndef make(values, device):\n    return {'weight': torch.full((values['half'],), 2.0, device=device)}\n"
        definition = changed(custom_inputs_entrypoint="make", reference=SCALED_NORM["reference"] + make)
        custom = {"type": "custom"}
        (_, weight, _), _ = called(one(definition_folder(tmp_path, definition, [row(8, weight=custom)])))
        assert weight.tolist() == [2.0] * 32
        definition.pop("custom_inputs_entrypoint")
        with pytest.raises(
            UsageError, match=r"weight is custom, and the definition has no custom_inputs_entryp"
        ):
            one(definition_folder(tmp_path, definition, [row(8, weight=custom)]))

    def test_has_the_outputs_of_a_reference_that_returns_a_dictionary(self, tmp_path: Path) -> None:
        definition = changed(
            inputs={"x": {"shape": ["rows"], "dtype": "float32"}},
            outputs={n: {"shape": ["rows"], "dtype": "float32"} for n in ("twice", "minus")},
            reference="def run(x):\n    return {'minus': -x, 'twice': 2 * x}",
        )
        (x,), outputs = called(one(definition_folder(tmp_path, definition, [{"axes": {"rows": 3}}])))
        assert torch.equal(outputs[0], 2 * x) and torch.equal(outputs[1], -x)


FILE = {"type": "safetensors", "path": "blob/a.safetensors", "tensor_key": "weight"}


def indexed(tmp_path: Path, tensors: dict[str, torch.Tensor], **axes: int) -> Path:
    """A definition with offsets in a file."""
    definition = changed(
        axes={"rows": {"type": "var"}, "cuts": {"type": "var"}},
        inputs={n: {"shape": [axis], "dtype": "int32"} for n, axis in (("x", "rows"), ("starts", "cuts"))},
        outputs={"y": {"shape": ["cuts"], "dtype": "int32"}},
        constraints=[],
        reference="def run(x, starts):\n    return x[starts.long()]",
    )
    source = {"type": "safetensors", "path": "data/set/blob/a.safetensors", "tensor_key": "starts"}
    line = {"axes": {"rows": 9, "cuts": 3, **axes}, "inputs": {"starts": source}}
    (tmp_path / "blob").mkdir()
    save_file(tensors, tmp_path / "blob" / "a.safetensors")
    return definition_folder(tmp_path / "definitions", definition, [line])


class TestFilesOfSafetensors:
    def test_few_whole_numbers_are_constants(self, tmp_path: Path) -> None:
        tensors = {"other": torch.rand(7), "starts": torch.tensor([0, 4, 8], dtype=torch.int32)}
        task = one(indexed(tmp_path, tensors))
        assert "starts = [0, 4, 8]\n" in task.source
        (x, starts), y = called(task)
        assert starts.dtype == torch.int32 and torch.equal(y, x[[0, 4, 8]])

    @pytest.mark.parametrize(
        ("starts", "axes", "message"),
        [
            (
                torch.rand(3),
                {},
                r"starts is in a file of safetensors that a task file cannot hold: it is of F32",
            ),
            (
                torch.zeros(5000, dtype=torch.int64),
                {"cuts": 5000},
                r"cannot hold: it has 5000 elements — write wor",
            ),
            (
                torch.zeros(4, dtype=torch.int64),
                {},
                r"starts has the shape \[4\], and its axes say \[3\] — correct",
            ),
        ],
    )
    def test_others_are_named(
        self, starts: torch.Tensor, axes: dict[str, int], message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError, match=message):
            one(indexed(tmp_path, {"starts": starts}, **axes))

    def test_a_missing_tensor_and_a_damaged_file_are_named(self, tmp_path: Path) -> None:
        folder = indexed(tmp_path, {"ends": torch.zeros(3, dtype=torch.int32)})
        with pytest.raises(UsageError, match=r"a\.safetensors has no tensor starts — it has ends"):
            one(folder)
        for damaged in (b"", b"\xff" * 9, b"\x02" + bytes(7) + b"{}"[:1]):
            (tmp_path / "blob" / "a.safetensors").write_bytes(damaged)
            with pytest.raises(UsageError, match=r"is no file of safetensors: .* — download it again"):
                one(folder)
        (tmp_path / "blob" / "a.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
        with pytest.raises(UsageError, match=r"cannot hold: it is a pointer of Git LFS"):
            one(folder)

    def test_a_path_that_leads_out_is_refused(self, tmp_path: Path) -> None:
        for path in ("/etc/a.safetensors", "../../a.safetensors"):
            file = {**FILE, "path": path}
            with pytest.raises(UsageError, match=r"names a file outside its data set"):
                one(definition_folder(tmp_path, SCALED_NORM, [row(8, weight=file)]))


class TestWhatIsLeftOut:
    def test_is_said_in_the_file_and_logged(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        task = one(definition_folder(tmp_path, SCALED_NORM, [row(8, weight=FILE), row(3)]))
        assert "rows = 3\n" in task.source and not task.workload
        said = "1 of 2 workloads are left out: weight is in a file of safetensors"
        assert said in " ".join(task.source.split())
        assert said in caplog.text

    def test_is_an_error_if_nothing_is_left(self, tmp_path: Path) -> None:
        with pytest.raises(
            UsageError, match=r"weight is in a file of safetensors that a task file cannot hold: it is not th"
        ):
            one(definition_folder(tmp_path, SCALED_NORM, [row(8, weight=FILE)]))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"axes": {"rows": {"type": "var"}}}, r"the input x: there is no axis width — it has rows"),
    ({"axes": {**SCALED_NORM["axes"], "width": {"type": "const"}}}, r"the const axis width has no value — give it"),
    ({"axes": {**SCALED_NORM["axes"], "half": {"type": "expr", "expression": "f(width)"}}}, r"expression 'f\(width"),
    ({"axes": {**SCALED_NORM["axes"], "half": {"type": "expr", "expression": "half + 1"}}}, r"half is computed from i"),
    ({"axes": {**SCALED_NORM["axes"], "half": {"type": "sum"}}}, r"axes\.half\.type: Input should be 'const'"),
    ({"inputs": {"x": {"shape": ["rows"], "dtype": "float3"}}}, r"the input x has the dtype float3 — use one of float64"),
    ({"inputs": {"x": {"shape": ["rows"], "dtype": "float4_e2m1fn_x2"}}}, r"has the dtype float4_e2m1fn_x2 — torch comp"),
    ({"reference": "def forward(x):\n    return x"}, r"defines no function run — name its function so"),
    ({"reference": "def run(x:\n"}, r"^the reference in .* is not Python: line 1"),
    ({"reference": "def run(x, y):\n    return x"}, r"run takes x, y, and the inputs are x, weight, eps — give run"),
    ({"outputs": {}}, r"has no outputs"),
    ({"inputs": []}, r"definition\.json: inputs: Input should be a valid dictionary — a definition has"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "message"), BAD)
def test_a_definition_that_does_not_fit_is_refused_in_a_line(
    parts: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        one(definition_folder(tmp_path, changed(**parts), [row(8)]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("definition.json", "{", r"definition\.json is not JSON: Expecting property name"),
        ("definition.json", "[" * 100_000, r"definition\.json is nested too deeply|is not JSON"),
        ("definition.json", '{"axes": 1}', r"definition\.json: axes: Input should be a valid dictionary"),
        ("workload.jsonl", '{"axes": {}}', r"workload\.jsonl line 1 gives no value for the axis rows — add \"rows\""),
        ("workload.jsonl", "\n\nrows: 1", r"workload\.jsonl line 3 is not JSON: Expecting value — correct it"),
        ("workload.jsonl", '{"axes": {"rows": 2}}', r"line 1 gives no value for eps — add \"eps\": {\"type\": \"sca"),
        ("workload.jsonl", '{"axes": {"rows": "x"}}', r"line 1: axes\.rows: Input should be a valid integer"),
        ("workload.jsonl", "\n", r"workload\.jsonl holds no workload"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_with_the_place(file: str, text: str, message: str, tmp_path: Path) -> None:
    folder = definition_folder(tmp_path, SCALED_NORM, [row(8)])
    (folder / file).write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        one(folder)
    assert "\n" not in str(error.value)
