"""Every task of the built-in suite keeps KernelBench's format and measures something."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelwright import kernelbench

SUITE = Path(kernelbench.__file__).parent / "tasks"
FILES = sorted(SUITE.glob("level[0-9]/*.py"))
DOMAINS = {
    "real",
    "positive",
    "probability",
    "unit",
    "lower_triangular",
    "upper_triangular",
    "symmetric",
    "sign",
    "mask",
    "index",
    "fixed",
}


@dataclass(frozen=True)
class Run:
    """A task, loaded and run once."""

    module: ModuleType
    model: torch.nn.Module
    inputs: list[torch.Tensor]
    inputs_before: list[torch.Tensor]
    outputs: list[torch.Tensor]

    @property
    def domains(self) -> list[str]:
        return getattr(self.module, "input_domains", ["real"] * len(self.inputs))


def call(model: torch.nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        outputs = model(*inputs)
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


def to_float64(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]


def largest_change(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    """Norm of the change relative to the norm of the output, of the output that changes most."""
    pairs = [(a.float(), b.float()) for a, b in zip(before, after, strict=True)]
    return max(float(torch.linalg.vector_norm(b - a) / torch.linalg.vector_norm(a)) for a, b in pairs)


def disturb(parameter: torch.Tensor) -> None:
    scale = 0.3 * parameter.data.abs().amax().clamp(min=0.1)
    parameter.data.add_(scale * torch.randn_like(parameter.data))


def load(path: Path) -> ModuleType:
    module = ModuleType(path.stem)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=pytest.mark.suite) for path in FILES
    ],
)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def run(path: Path) -> Iterator[Run]:
    module = load(path)
    torch.manual_seed(0)
    model = module.Model(*module.get_init_inputs())
    for parameter in model.parameters():
        disturb(parameter)  # a bias of zero would hide what depends on it
    inputs = module.get_inputs()
    inputs_before = [tensor.clone() for tensor in inputs]
    yield Run(module, model, inputs, inputs_before, call(model, inputs))


def test_source_keeps_the_format(path: Path) -> None:
    tree = ast.parse(path.read_text())
    docstring = ast.get_docstring(tree)
    assert docstring and docstring.endswith(".") and "\n\n" not in docstring
    names = set()
    for node in tree.body:
        match node:
            case ast.Import(names=aliases):
                assert {alias.name for alias in aliases} <= {"math", "torch", "torch.nn.functional"}
            case ast.ImportFrom(module=module):
                assert module == "torch"
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                assert name.islower(), f"{name}: constants are named as KernelBench names them"
                ast.literal_eval(value)  # so that `--set` can replace any of them
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case _:
                assert isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant), ast.dump(node)
    assert {"Model", "get_inputs", "get_init_inputs"} <= names


def test_inputs_are_legal(run: Run) -> None:
    assert sum(tensor.nbytes for tensor in run.inputs) <= 100e6
    assert len(run.domains) == len(run.inputs)
    for domain, tensor in zip(run.domains, run.inputs, strict=True):
        assert domain in DOMAINS
        assert tensor.device.type == "cpu"
        assert tensor.dtype in (torch.float32, torch.int64, torch.bool)
        match domain:
            case "positive":
                assert (tensor >= 0).all()
            case "probability":
                torch.testing.assert_close(tensor.sum(dim=-1), torch.ones(tensor.shape[:-1]))
            case "unit":
                assert ((tensor >= 0) & (tensor <= 1)).all()
            case "lower_triangular":
                assert torch.equal(tensor, tensor.tril())
            case "upper_triangular":
                assert torch.equal(tensor, tensor.triu())
            case "symmetric":
                assert torch.equal(tensor, tensor.T)
            case "sign":
                assert (tensor.abs() == 1).all()
            case "mask":
                assert ((tensor == 0) | (tensor == 1)).all()
            case "index":
                assert tensor.dtype == torch.int64


def test_output_is_finite_and_not_nearly_constant(run: Run) -> None:
    for output in run.outputs:
        assert torch.isfinite(output).all()
        if output.numel() > 1:
            deviation, mean = torch.std_mean(output.float())
            assert deviation > 0.01 * mean.abs()


def test_forward_is_deterministic_and_leaves_its_inputs_alone(run: Run) -> None:
    for before, after in zip(run.outputs, call(run.model, run.inputs), strict=True):
        assert torch.equal(before, after)
    for before, after in zip(run.inputs_before, run.inputs, strict=True):
        assert torch.equal(before, after)


def test_output_depends_on_every_input(run: Run) -> None:
    torch.manual_seed(1)
    for index, redrawn in enumerate(run.module.get_inputs()):
        inputs = [*run.inputs[:index], redrawn, *run.inputs[index + 1 :]]
        assert largest_change(run.outputs, call(run.model, inputs)) > 0.01, f"input {index}"


def test_output_depends_on_every_weight(run: Run) -> None:
    torch.manual_seed(1)
    for name, parameter in run.model.named_parameters():
        weight = parameter.detach().clone()
        disturb(parameter)
        changed = call(run.model, run.inputs)
        parameter.data.copy_(weight)
        assert largest_change(run.outputs, changed) > 1e-3, name


def test_float64_agrees_with_float32(path: Path, run: Run) -> None:
    model = run.module.Model(*run.module.get_init_inputs())
    model.load_state_dict(run.model.state_dict())
    for single, double in zip(run.outputs, call(model.double(), to_float64(run.inputs)), strict=True):
        if single.is_floating_point():
            assert double.dtype == torch.float64
            assert (single - double).abs().max() <= 1e-3 * double.abs().max()
        else:
            assert (single == double).double().mean() >= 0.999


def test_model_can_be_exported(run: Run) -> None:
    exported = torch.export.export(run.model, tuple(run.inputs), strict=False).module()
    for eager, graph in zip(run.outputs, call(exported, run.inputs), strict=True):
        torch.testing.assert_close(eager, graph)


@pytest.mark.parametrize(("level", "least"), [(1, 40), (2, 30), (3, 10)])
def test_every_level_has_enough_tasks(level: int, least: int) -> None:
    assert sum(path.parent.name == f"level{level}" for path in FILES) >= least


def test_no_two_tasks_are_the_same() -> None:
    tasks: dict[str, Path] = {}
    for path in FILES:
        below_docstring = ast.parse(path.read_text()).body[1:]
        other = tasks.setdefault("".join(map(ast.dump, below_docstring)), path)
        assert other == path, f"{path} computes what {other} does"
