"""Operators of meta-pytorch's TritonBench (github.com/meta-pytorch/tritonbench): operators/NAME/operator.py.

    class Operator(BenchmarkOperator):
        @register_benchmark(baseline=True)
        def torch_add(self, x, y): return lambda: x + y      the reference
        @register_benchmark()
        def triton_add(self, x, y): ...                      a kernel: operator.py:triton_add
        def get_input_iter(self): ...                        its inputs, each a size

What is kept of the class and of the modules beside it is what the chosen methods need. In place of its base
class there is one that has a device, a dtype and no options.
"""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.counting import counted_inputs
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.assignments import parse
from kernelwright.kernelbench.sources.entry import read_text
from kernelwright.kernelbench.sources.formats.carrying import CarriedCode, carried
from kernelwright.kernelbench.sources.formats.interface import TaskFile
from kernelwright.kernelbench.sources.formats.task_text import TaskText, documented

_FILE, _CLASS, _REGISTER, _INPUTS = "operator.py", "Operator", "register_benchmark", "get_input_iter"
_PLACE = "place"
_MOST = 16  # sizes of a task, evenly spread over its inputs
_BASE = '''\
import enum
import torch

PRECISION_DTYPE_MAPPING = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

class Mode(enum.Enum):
    FWD = "fwd"
    BWD = "bwd"
    FWD_BWD = "fwd_bwd"
    FWD_NO_GRAD = "fwd_no_grad"

class NoOptions:
    """Options, none of which is given."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None

def register_benchmark(*args, **options):
    return lambda method: method

class BenchmarkOperator:
    DEFAULT_PRECISION = "bypass"

    def __init__(self, tb_args, extra_args=None):
        self.tb_args, self.extra_args = tb_args, []
        self.device = torch.get_default_device()
        self.dtype = PRECISION_DTYPE_MAPPING.get(self.DEFAULT_PRECISION)
        self.name, self.mode, self.requires_grad = "", Mode.FWD, True
        self.add_production_shapes, self.prod_shapes, self.use_cuda_graphs = False, None, False
'''
_OPERATOR = """\
class {model}(nn.Module):
    def __init__(self):
        super().__init__()
        self.operator = Operator(NoOptions(), [])
        for name, value in vars(self.operator).items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)

    def forward(self, {inputs}):
        return self.operator.{method}({inputs})()
"""
_DRAWN = """

def all_inputs():
    return Operator(NoOptions(), []).get_input_iter()


def get_inputs():
    return list(next(itertools.islice(all_inputs(), place, None)))


def get_init_inputs():
    return []
"""


class TritonBenchOperatorsFormat:
    name = "TritonBench's operators"

    def task_paths(self, path: Path) -> Sequence[Path]:
        file = path / _FILE if path.is_dir() else path
        return [file] if file.name == _FILE and file.is_file() and _REGISTER in read_text(file) else []

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        return _Operator(path).task()

    def holds_candidate(self, path: Path) -> bool:
        file, colon, _ = str(path).rpartition(":")
        return bool(colon and self.task_paths(Path(file)))

    def candidate(self, path: Path) -> str:
        file, _, method = str(path).rpartition(":")
        return _Operator(Path(file)).candidate(method)


class _Operator:
    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.source, self.where = read_text(path), str(path)
        classes = [n for n in parse(self.source, self.where).body if isinstance(n, ast.ClassDef)]
        found = next((each for each in classes if each.name == _CLASS), None)
        if found is None:
            raise UsageError(f"{path} defines no class {_CLASS}", "give an operator of TritonBench")
        self.body = found
        self.methods = {n.name: n for n in found.body if isinstance(n, ast.FunctionDef)}
        self.benchmarks: dict[str, bool] = {}  # whether each is the baseline
        for name, method in self.methods.items():
            registers = [text for d in method.decorator_list if _REGISTER in (text := ast.unparse(d))]
            if registers:
                self.benchmarks[name] = any("baseline=True" in text for text in registers)

    def task(self) -> TaskFile:
        baselines = [name for name, is_baseline in self.benchmarks.items() if is_baseline]
        if not baselines or _INPUTS not in self.methods:
            raise UsageError(
                f"{self.where} has {'no ' + _INPUTS if baselines else 'no benchmark that is the baseline'}",
                "mark the one in torch: @register_benchmark(baseline=True)",
            )
        baseline, code = self._in_torch(baselines)
        name = self.path.parent.name
        notes = []
        if len(self.methods[baseline].body) > 1:
            notes.append(f"what {baseline} does before it returns a function is timed here, and not there")
        text = self._text(name, code, baseline, [0], notes)
        try:
            count = counted_inputs(text, f"{_INPUTS} of {self.where}")
        except UsageError as error:
            count = 1
            notes.append(
                f"its first input is its only size, as the others cannot be counted ({error.message})"
            )
        if count > _MOST:
            notes.append(f"{count - _MOST} of {count} inputs are left out, and the others evenly spread")
        places = sorted({round(each * (count - 1) / (_MOST - 1)) for each in range(_MOST)})
        return TaskFile(name, self._text(name, code, baseline, places, notes), tuple(notes))

    def _in_torch(self, baselines: Sequence[str]) -> tuple[str, CarriedCode]:
        """Return the first baseline that needs no kernels, with its code. Raises UsageError."""
        for name in baselines:
            code = self._kept([name, _INPUTS])
            if not any(line.startswith(("import triton", "from triton")) for line in code.imports):
                return name, code
        raise UsageError(
            f"{self.where}: its baseline {baselines[0]} needs Triton, and a reference is in torch",
            "mark a benchmark in torch as the baseline",
        )

    def candidate(self, method: str) -> str:
        if method not in self.benchmarks:
            raise UsageError(
                f"{self.where} has no benchmark {method}", f"it has {', '.join(self.benchmarks)}"
            )
        code = self._kept([method])
        head = documented([f"{method} of {self.path.parent.name}, an operator of TritonBench."])
        imports = dict.fromkeys(["import torch", "from torch import nn", *code.imports])
        return (
            f"{head}\n\n" + "\n".join(imports) + f"\n\n\n{code.code}\n\n\n{self._model('ModelNew', method)}"
        )

    def _text(
        self, name: str, code: CarriedCode, baseline: str, places: Sequence[int], notes: Sequence[str]
    ) -> str:
        return TaskText(
            title=f"{name}, an operator of TritonBench, by {baseline}.",
            paragraphs=[f"The {_PLACE} is which of the inputs of {_INPUTS} it is."],
            carried=code,
            constants={_PLACE: str(places[0])},
            sizes=[Size(constants={_PLACE: str(each)}) for each in places],
            code=self._model("Model", baseline) + _DRAWN,
            notes=notes,
        ).written()

    def _model(self, model: str, method: str) -> str:
        arguments = self.methods[method].args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][1:]
        names += [f"*{arguments.vararg.arg}"] if arguments.vararg is not None else []
        return _OPERATOR.format(model=model, method=method, inputs=", ".join(names))

    def _kept(self, roots: Sequence[str]) -> CarriedCode:
        """Return the class with these methods, and what they need. Raises UsageError."""
        kept = self._needed([*roots, "__init__"])
        lines = self.source.splitlines()
        for node in self.body.body:
            if isinstance(node, ast.FunctionDef):
                registers = [d for d in node.decorator_list if "register_" in ast.unparse(d)]
                decorated = [each.lineno for each in node.decorator_list]
                first = min([node.lineno, *decorated]) - 1
                gone = [(d.lineno - 1, d.end_lineno or d.lineno) for d in registers]
                if node.name not in kept:
                    gone = [(first, node.end_lineno or node.lineno)]
                gone += self._unread(node, kept) if node.name == "__init__" else []
                for start, end in gone:
                    lines[start:end] = [""] * (end - start)
        package = f"tritonbench.operators.{self.path.parent.name}"
        modules = self._modules(package)
        source = "import itertools\nfrom tritonbench.utils.triton_op import NoOptions\n" + "\n".join(lines)
        code = carried(source, f"{package}.operator", [_CLASS, "NoOptions", "itertools"], modules)
        if missing := [line for line in code.imports if "tritonbench" in line or line.startswith("from .")]:
            raise UsageError(
                f"{self.where} needs `{missing[0]}`, which is not carried over", "write a task by hand"
            )
        return code

    def _unread(self, init: ast.FunctionDef, kept: set[str]) -> list[tuple[int, int]]:
        """Return the lines that set what no kept method reads, such as models of other benchmarks."""
        read = {
            node.attr
            for name in kept
            for node in ast.walk(self.methods[name])
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        }
        found = []
        for node in init.body:
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                found += (
                    [(node.lineno - 1, node.end_lineno or node.lineno)] if target.attr not in read else []
                )
        return found

    def _needed(self, roots: Sequence[str]) -> set[str]:
        """Return the methods that these call, and they themselves."""
        found: set[str] = set()
        open_names = list(roots)
        while open_names:
            name = open_names.pop()
            if name in self.methods and name not in found:
                found.add(name)
                open_names += [
                    node.attr
                    for node in ast.walk(self.methods[name])
                    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", _CLASS)
                ]
        return found

    def _modules(self, package: str) -> dict[str, str]:
        """Return the texts of modules that an operator may import from, by their names."""
        root = self.path.parents[2]  # tritonbench/operators/NAME/operator.py
        found = {f"{package}.{path.stem}": read_text(path) for path in self.path.parent.glob("*.py")}
        for folder in ("utils", "kernels"):
            for path in (root / folder).glob("*.py"):
                found[f"tritonbench.{folder}.{path.stem}"] = read_text(path)
        found.pop(f"{package}.operator", None)
        own = "tritonbench.utils.triton_op"  # what it imports and defines besides is imported from it, too
        rest = found[f"{own}_rest"] = found.get(own, "")
        lines = []
        for node in parse(rest, own).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tritonbench."):
                lines += [f"from {node.module} import {alias.name}" for alias in node.names]
            if isinstance(node, ast.FunctionDef) and f"def {node.name}(" not in _BASE:
                lines.append(f"from {own}_rest import {node.name}")
        return found | {own: "\n".join([*lines, _BASE])}
