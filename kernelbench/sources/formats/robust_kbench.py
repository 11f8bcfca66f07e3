"""robust-kbench (github.com/SakanaAI/robust-kbench): func_forward.py with config_forward.json, and kernels.

The module's `Model`, `forward_fn` and `get_inputs` become a task with the configurations as its sizes: the
single one first, then the product of those of several. func_backward.py is read as the task of its forward,
from which `kernelwright gradient` writes the task of its gradients. A .cu file that binds `forward` becomes a
candidate, with what it is called with.
"""

import ast
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.assignments import module_scope, parse
from kernelwright.kernelbench.sources.entry import read_text
from kernelwright.kernelbench.sources.formats.carrying import carried
from kernelwright.kernelbench.sources.formats.documents import read_json
from kernelwright.kernelbench.sources.formats.extension import extension_text
from kernelwright.kernelbench.sources.formats.interface import TaskFile
from kernelwright.kernelbench.sources.formats.task_text import (
    TaskText,
    called,
    constant_names,
    documented,
    merged,
    returned,
    varying,
)

_FORWARD, _BACKWARD = "func_forward.py", "func_backward.py"
_CONFIGS = ("input_configs", "init_configs", "shared_configs")
_FORM = 'give it "single_input_configs", "single_init_configs" and "single_shared_configs", lists of mappings'
_DRAW = "make_inputs"  # what the module's own get_inputs is called in the task


class RobustKbenchFormat:
    name = "robust-kbench"

    def task_paths(self, path: Path) -> Sequence[Path]:
        if path.is_dir():
            found = [path / name for name in (_FORWARD, _BACKWARD) if (path / name).is_file()]
            return found[:1]
        return [path] if path.name in (_FORWARD, _BACKWARD) and path.is_file() else []

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        module = _Module(path)
        name = path.resolve().parent.name
        rows, notes = module.rows()
        if path.name == _BACKWARD:
            notes.append(
                "this is the forward; `kernelwright gradient` writes the task of its gradients from it"
            )
        elif path.with_name(_BACKWARD).is_file():
            notes.append(f"`kernelwright gradient` writes the task of its gradients, those of {_BACKWARD}")
        all_sizes = merged(Size(constants={k: repr(v) for k, v in row.items()}) for row in rows)
        text = TaskText(
            title=f"{name}, a task of robust-kbench.",
            paragraphs=[module.about],
            carried=module.code,
            constants=all_sizes[0].constants if rows[0] else {},
            sizes=varying(all_sizes) if rows[0] else (),
            code=module.functions(),
            notes=notes,
        )
        return TaskFile(name, text.written(), tuple(notes))

    def holds_candidate(self, path: Path) -> bool:
        return path.suffix == ".cu" and path.is_file()

    def candidate(self, path: Path) -> str:
        beside = [folder / _FORWARD for folder in path.resolve().parents[:2]]
        reference = next((each for each in beside if each.is_file()), None)
        if reference is None:
            raise UsageError(
                f"{path} has no {_FORWARD} beside it that says how it is called",
                "put it into the folder of its task, or give a Python file that defines ModelNew",
            )
        source = read_text(path)
        if "PYBIND11_MODULE" not in source or '"forward"' not in source:
            raise UsageError(
                f"{path} binds no function forward",
                'bind it: PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", …); }',
            )
        module = _Module(reference)
        if "fn" not in module.forward_arguments:
            raise UsageError(
                f"Model.forward in {reference} takes no fn", "give a Python file that defines ModelNew"
            )
        inputs = [each for each in module.forward_arguments if each != "fn"]
        build = extension_text({path.name: source}, "forward", path.parent.name, str(path))
        imports = list(dict.fromkeys(["import torch", "from torch import nn", *module.code.imports]))
        model = f"class ModelNew(Model):\n    def forward(self, {', '.join(inputs)}):\n"
        model += f"        return super().forward({', '.join(inputs)}, fn=extension.forward)\n"
        head = documented([f"{path.name}: a kernel of robust-kbench."])
        return f"{head}\n\n" + "\n".join(imports) + f"\n{build}\n\n\n{module.code.code}\n\n\n{model}"


class _Module:
    """func_forward.py or func_backward.py with its configuration."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        source = read_text(path)
        tree = parse(source, self.where)
        scope = module_scope(tree)
        for name in ("Model", "get_inputs"):
            if name not in scope.definitions:
                raise UsageError(
                    f"{path} does not define {name}", "a task of robust-kbench has Model and get_inputs"
                )
        draw, model = scope.definitions["get_inputs"], scope.definitions["Model"]
        if not isinstance(draw, ast.FunctionDef) or not isinstance(model, ast.ClassDef):
            raise UsageError(
                f"{path}: get_inputs or Model is of another kind", "make them a function and a class"
            )
        functions = {each.name: each for each in model.body if isinstance(each, ast.FunctionDef)}
        self.inputs = _signature(draw)
        self.init = _signature(functions["__init__"]) if "__init__" in functions else {}
        forward = functions.get("forward")
        self.forward_arguments = list(_signature(forward)) if forward is not None else []
        self.about = (ast.get_docstring(model) or "").partition("\n\n")[0]
        lines = source.splitlines()
        lines[draw.lineno - 1] = lines[draw.lineno - 1].replace("get_inputs", _DRAW, 1)
        self.code = carried("\n".join(lines), self.where, ["Model", _DRAW])
        self.names = constant_names(dict.fromkeys([*self.inputs, *self.init]), self.code.names, self.where)

    def rows(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the values of the constants at each size, and what is not read of the configuration."""
        kind = "forward" if self.path.name == _FORWARD else "backward"
        files = [self.path.with_name(f"config_{kind}.json"), self.path.with_name("configs.json")]
        file = next((each for each in files if each.is_file()), None)
        held = read_json(file) if file is not None else {f"single_{name}": [{}] for name in _CONFIGS}
        if not isinstance(held, dict):
            raise UsageError(f"{file} holds no mapping", _FORM)
        rows: list[dict[str, Any]] = []
        unknown: dict[str, None] = {}
        for prefix in ("single", "multi"):
            parts = [held.get(f"{prefix}_{name}") or [{}] for name in _CONFIGS]
            if not all(isinstance(each, dict) for part in parts for each in part):
                raise UsageError(f"{file}: {prefix}_… are not lists of mappings", _FORM)
            for inputs, init, shared in itertools.product(*parts):
                both = {**init, **inputs, **shared}
                unknown.update(dict.fromkeys(key for key in both if key not in self.names))
                for key in init.keys() & inputs.keys() - shared.keys():
                    if init[key] != inputs[key]:
                        raise UsageError(
                            f"{file} gives {key} twice, as {init[key]} and {inputs[key]}", "give it once"
                        )
                row = self._full(both, file)
                if row not in rows and (both or prefix == "single"):
                    rows.append(row)
        notes = [f"nothing takes {', '.join(unknown)}, which the configuration sets"] if unknown else []
        return rows, notes

    def _full(self, given: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
        """Return a value for each constant: the configuration's, or the signature's default."""
        found = {}
        for key, own in self.names.items():
            default = self.inputs.get(key) or self.init.get(key)
            if key in given:
                found[own] = given[key]
            elif default is not None:
                try:
                    found[own] = ast.literal_eval(default)
                except ValueError:
                    raise UsageError(
                        f"{self.where}: the default of {key} is no literal",
                        f"set it in {file or 'config_forward.json'}",
                    ) from None
            else:
                raise UsageError(
                    f"{file or self.where} gives no value for {key}", "add it to its configurations"
                )
        return found

    def functions(self) -> str:
        """Return get_inputs and get_init_inputs."""
        given = called(_DRAW, [f"{key}={self.names[key]}" for key in self.inputs])
        init = returned([self.names[key] for key in self.init])
        return f"def get_inputs():\n{given}\n\n\ndef get_init_inputs():\n{init}"


def _signature(function: ast.FunctionDef) -> dict[str, ast.expr | None]:
    """Return the arguments of a function, but for self, with their defaults."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + list(function.args.defaults)
    found = {
        each.arg: default for each, default in zip(arguments, defaults, strict=True) if each.arg != "self"
    }
    found |= {e.arg: d for e, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)}
    return found
