"""FlashInfer-Bench and SOL-ExecBench: a definition with its workload as a task, a solution as a candidate.

    FOLDER/definition.json  FOLDER/workload.jsonl  FOLDER/solution.json          SOL-ExecBench
    definitions/OP/NAME.json  workloads/OP/NAME.jsonl  solutions/…/*.json    FlashInfer-Bench

Each line of the workload is a size. Random inputs are standard normal, as FlashInfer-Bench draws them, and
integers are from its ranges; custom ones come from the definition's own function. Whole numbers of a file of
safetensors, such as the offsets of sequences, are constants of the task where they are few.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.formats.carrying import carried
from kernelwright.kernelbench.sources.formats.definitions import (
    WorkloadRow,
    function_arguments,
    in_order,
    is_definition,
    read_definition,
    read_workload,
    renamed,
    workload_file,
)
from kernelwright.kernelbench.sources.formats.documents import checked
from kernelwright.kernelbench.sources.formats.interface import TaskFile
from kernelwright.kernelbench.sources.formats.safetensors_file import WholeNumbers, found_file, whole_numbers
from kernelwright.kernelbench.sources.formats.solutions import is_solution, solution_candidate
from kernelwright.kernelbench.sources.formats.task_text import (
    TaskText,
    constant_names,
    merged,
    returned,
    sentence,
    varying,
)

# Ranges of random integers, as FlashInfer-Bench has them (flashinfer_bench/bench/utils.py).
_RANGES = {"int8": (-128, 128), "uint8": (0, 256)}
_RANGE = (-1024, 1024)
_EIGHT_BIT = 2.0  # random eight-bit floats are cut off there, as it does
_SUPPORTED = ("random", "scalar", "custom", "safetensors")
_MOST = 1024  # whole numbers of a file that are written into the task


class FlashInferFormat:
    name = "FlashInfer-Bench or SOL-ExecBench"

    def task_paths(self, path: Path) -> Sequence[Path]:
        if path.is_dir():
            own = path / "definition.json"
            if own.is_file():
                return [own]
            root = path if path.name == "definitions" else path / "definitions"
            return [each for each in sorted(root.rglob("*.json")) if is_definition(each)]
        return [path] if is_definition(path) else []

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        return _DefinedTask(path, sizes).written()

    def holds_candidate(self, path: Path) -> bool:
        return is_solution(path)

    def candidate(self, path: Path) -> str:
        return solution_candidate(path)


@dataclass(frozen=True)
class _Row:
    """A size: values of the var axes, and literals of the inputs that it gives."""

    axes: Mapping[str, int]
    values: Mapping[str, str]


class _DefinedTask:
    """A definition on its way to a task file."""

    def __init__(self, path: Path, given: Mapping[str, str]) -> None:
        self.where = str(path)
        self.definition = read_definition(path)
        self.notes: list[str] = []
        self.carried = carried(self.definition.reference, f"the reference in {path}")
        found = function_arguments(self.definition.reference, "run", f"the reference in {path}")
        if found is None:
            raise UsageError(
                f"the reference in {path} defines no function run", "name its function so: def run(x): …"
            )
        self.arguments, self.returns_dict = found
        inputs = list(self.definition.inputs)
        if len(self.arguments) != len(inputs) and not set(self.arguments) < set(inputs):
            raise UsageError(
                f"{path}: run takes {', '.join(self.arguments) or 'nothing'}, and the inputs are "
                f"{', '.join(inputs)}",
                "give run one argument for each input, in their order",
            )
        self.rows = self._rows(path, given)
        held = [name for name in inputs if self.kinds[name] in ("scalar", "safetensors")]
        taken = self.carried.names
        wanted = [axis for axis in self.definition.axes if not axis.isdecimal()]
        self.constants = constant_names(wanted, taken, self.where)
        self.values = constant_names(held, {*taken, *self.constants.values()}, self.where)

    def _rows(self, path: Path, given: Mapping[str, str]) -> list[_Row]:
        """Return the sizes that a task file can hold; `kinds`: where each input of all of them comes from."""
        file = workload_file(path)
        if file is None:
            rows = [(self.where, self._row_of(given))]
        else:
            rows = list(read_workload(file, self.definition))
        if not rows:
            raise UsageError(
                f"{file} holds no workload", "write one a line, or give --size M=128 without the file"
            )
        reasons: Counter[str] = Counter()
        found: list[_Row] = []
        self.kinds: dict[str, str] = {}
        for where, row in rows:
            kinds = {name: self._kind(row, name, where) for name in self.definition.inputs}
            values, why = self._values(kinds, row, path)
            if why:
                reasons[why] += 1
            elif self.kinds and kinds != self.kinds:
                differs = next(name for name in kinds if kinds[name] != self.kinds[name])
                reasons[f"{differs} is {kinds[differs]}, and {self.kinds[differs]} in the first"] += 1
            else:
                self.kinds = kinds
                found.append(_Row(row.axes, values))
        if not found:
            why = "; ".join(reasons)
            raise UsageError(
                f"{file}: {why}",
                "write workloads with random or custom inputs",
            )
        self.notes += [
            f"{count} of {len(rows)} workloads are left out: {why}" for why, count in reasons.items()
        ]
        return found

    def _row_of(self, given: Mapping[str, str]) -> WorkloadRow:
        """Return the size that options give, where there is no workload."""
        needed = [name for name, axis in self.definition.axes.items() if axis.type == "var"]
        numbers = [name for name, spec in self.definition.inputs.items() if spec.shape is None]
        if missing := [name for name in (*needed, *numbers) if name not in given]:
            example = " ".join(["--size", ",".join(f"{name}=…" for name in (*needed, *numbers))])
            raise UsageError(
                f"{self.where} has no workload that says what {missing[0]} is",
                f"put workload.jsonl beside it, or give {example}",
            )
        held: dict[str, object] = {"axes": {name: given[name] for name in needed}}
        held["inputs"] = {name: {"type": "scalar", "value": _number(given[name])} for name in numbers}
        return checked(WorkloadRow, held, "--size", "give whole numbers for axes")

    def _kind(self, row: WorkloadRow, name: str, where: str) -> str:
        source = row.inputs.get(name)
        spec = self.definition.inputs[name]
        if source is None and spec.shape is None:
            raise UsageError(
                f"{where} gives no value for {name}", f'add "{name}": {{"type": "scalar", "value": 1.0}}'
            )
        kind = source.type if source is not None else "random"
        if kind == "scalar" and (source is None or source.value is None):
            raise UsageError(f"{where}: the scalar {name} has no value", 'add one: "value": 1.0')
        if kind == "custom" and not self.definition.custom_inputs_entrypoint:
            raise UsageError(
                f"{where}: {name} is custom, and the definition has no custom_inputs_entrypoint",
                "name there the function of the reference that makes it",
            )
        return kind

    def _values(self, kinds: Mapping[str, str], row: WorkloadRow, path: Path) -> tuple[dict[str, str], str]:
        """Return literals for the inputs that a size gives, or why it cannot be in a task file."""
        found = {}
        for name, kind in kinds.items():
            if kind == "scalar":
                found[name] = repr(row.inputs[name].value)
            elif kind == "safetensors":
                held = self._numbers(row, name, path)
                if isinstance(held, str):
                    return {}, f"{name} is in a file of safetensors that a task file cannot hold: {held}"
                found[name] = str(held)
            elif kind not in _SUPPORTED:
                return {}, f"{name} comes from {kind!r}, which is none of {', '.join(_SUPPORTED)}"
            elif kind == "random" and self.definition.inputs[name].shape is None:
                return {}, f"{name} is a random number, and no value is given"
        return found, ""

    def _numbers(self, row: WorkloadRow, name: str, path: Path) -> WholeNumbers | str:
        """Return an input's numbers from its file, or why they are none."""
        source, spec = row.inputs[name], self.definition.inputs[name]
        file = found_file(source.path, path)
        if file is None:
            return "it is not there"
        held = whole_numbers(file, source.tensor_key or name, _MOST)
        known = {axis: each.value for axis, each in self.definition.axes.items()} | row.axes
        wanted = [known.get(axis) for axis in spec.shape or ()]
        if not isinstance(held, str) and None not in wanted and wanted != list(held.shape):
            raise UsageError(
                f"{file}: {name} has the shape {list(held.shape)}, and its axes say {wanted}",
                "correct the workload's axes",
            )
        return held

    def written(self) -> TaskFile:
        definition = self.definition
        sizes = varying(merged(self._size(row) for row in self.rows))
        text = TaskText(
            title=sentence(definition.name),
            paragraphs=[sentence(definition.description or ""), self._signature()],
            carried=self.carried,
            constants=self._constants(),
            sizes=sizes,
            code=self._code(),
            notes=self.notes,
        )
        return TaskFile(definition.name, text.written(), tuple(self.notes))

    def _size(self, row: _Row) -> Size:
        axes = [name for name, axis in self.definition.axes.items() if axis.type == "var"]
        constants = {self.constants[axis]: str(row.axes[axis]) for axis in axes}
        return Size(constants=constants | {own: row.values[name] for name, own in self.values.items()})

    def _constants(self) -> dict[str, str]:
        first = self._size(self.rows[0]).constants
        found = {}
        for axis in in_order(self.definition, list(self.definition.axes), self.where):
            own = self.constants[axis]
            found[own] = first.get(own) or renamed(self.definition.value_of(axis, self.where), self.constants)
        return found | {own: first[own] for own in self.values.values()}

    def _signature(self) -> str:
        def listed(tensors: Mapping[str, object]) -> str:
            specs = {**self.definition.inputs, **self.definition.outputs}
            words = []
            for name in tensors:
                spec = specs[name]
                shape = "a number" if spec.shape is None else f"{spec.dtype}[{', '.join(spec.shape)}]"
                words.append(f"{name}: {shape}")
            return ", ".join(words)

        text = f"Inputs: {listed(self.definition.inputs)}. Outputs: {listed(self.definition.outputs)}."
        if self.definition.constraints:
            text += f" Always: {'; '.join(self.definition.constraints)}."
        return text

    def _code(self) -> str:
        inputs = list(self.definition.inputs)
        by_name = set(self.arguments) <= set(inputs) and self.arguments != inputs
        given = ", ".join(
            f"{name}={name}" if by_name else name for name in (self.arguments if by_name else inputs)
        )
        lines = ["class Model(nn.Module):", f"    def forward(self, {', '.join(inputs)}):"]
        if self.returns_dict:
            outputs = ", ".join(f'found["{name}"]' for name in self.definition.outputs)
            lines += [f"        found = run({given})", f"        return {outputs}"]
        else:
            lines.append(f"        return run({given})")
        lines += ["", "", "def get_inputs():"]
        if "custom" in self.kinds.values():
            known = {**self.constants, **self.values}
            values = ", ".join(f'"{name}": {own}' for name, own in known.items())
            make = self.definition.custom_inputs_entrypoint
            if make not in self.carried.names:
                raise UsageError(
                    f"the reference in {self.where} defines no function {make}",
                    "define it, or leave out custom_inputs_entrypoint",
                )
            lines.append(f"    custom = {make}({{{values}}}, torch.get_default_device())")
        lines += [returned([self._drawn(name) for name in inputs])]
        lines += ["", "", "def get_init_inputs():", "    return []"]
        return "\n".join(lines)

    def _drawn(self, name: str) -> str:
        """Return the code that draws an input."""
        spec, kind = self.definition.inputs[name], self.kinds[name]
        if kind == "custom":
            return f'custom["{name}"]'
        if kind == "scalar" and spec.shape is None:
            return self.values[name]
        dtype = f"dtype=torch.{spec.dtype}"
        if kind in ("scalar", "safetensors"):
            return f"torch.tensor({self.values[name]}, {dtype})"
        shape = ", ".join(self.constants.get(axis, axis) for axis in spec.shape or ()) or "()"
        if spec.dtype == "bool":
            return f"torch.rand({shape}) < 0.5"
        if spec.dtype.startswith("float8"):
            return f"torch.randn({shape}).clamp(-{_EIGHT_BIT}, {_EIGHT_BIT}).to(torch.{spec.dtype})"
        if "int" in spec.dtype:
            low, high = _RANGES.get(spec.dtype, _RANGE)
            one = "," if shape != "()" and "," not in shape else ""
            tuple_ = "()" if shape == "()" else f"({shape}{one})"
            return f"torch.randint({low}, {high}, {tuple_}, {dtype})"
        return f"torch.randn({shape})" if spec.dtype == "float32" else f"torch.randn({shape}, {dtype})"


def _number(text: str) -> object:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
