"""The file submitted: lint-clean, no dead code, strict about shapes, weights and constructor arguments."""

import ast
import re
from pathlib import Path

import pytest
import torch

from tests.helpers.builtin.proving import load, models, propose, prove, ruff, source

pytestmark = pytest.mark.builds

NESTED = source(
    "y = torch.sigmoid(self.net(x) * self.gain); return y, y.sum(dim=1)",
    "torch.randn(10, 12)",
    init="width, eps: self.net = nn.Sequential(nn.Linear(12, width), nn.LayerNorm(width, eps=eps)); "
    "self.gain = nn.Parameter(torch.ones(width)); self.register_buffer('steps', torch.zeros(()))",
    init_inputs="16, 1e-3",
)
BATCH_NORM = source(
    "return F.relu(self.norm(x))",
    "torch.randn(6, 5, 8, 8)",
    init="self.norm = nn.BatchNorm2d(5, momentum=0.3)",
)


@pytest.mark.parametrize("text", [NESTED, BATCH_NORM])
def test_the_file_is_lint_clean(text: str, tmp_path: Path) -> None:
    assert ruff(propose(text).source, tmp_path) == "All checks passed!\n"


def test_every_helper_in_the_file_is_called() -> None:
    text = propose(NESTED).source
    for helper in re.findall(r"static inline \w+ (\w+)\(", text):
        assert len(re.findall(rf"\b{helper}\b", text)) > 1, helper


def test_weights_have_the_names_and_the_initial_values_of_the_reference(tmp_path: Path) -> None:
    reference, new = load(NESTED, tmp_path), load(propose(NESTED).source, tmp_path)
    torch.manual_seed(3)
    wanted = reference.Model(16, 1e-3).state_dict()
    torch.manual_seed(3)
    found = new.ModelNew(16, 1e-3).state_dict()
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_other_constructor_arguments_are_refused(tmp_path: Path) -> None:
    new = load(propose(NESTED).source, tmp_path)
    with pytest.raises(ValueError, match=r"built for ModelNew\(16, 0.001\)"):
        new.ModelNew(16, 1e-5)


def test_other_shapes_and_dtypes_are_refused(tmp_path: Path) -> None:
    _, model_new, _ = models(NESTED, propose(NESTED), tmp_path)
    with pytest.raises(ValueError, match=r"x must be torch.float32 of shape \(10, 12\)"):
        model_new(torch.randn(11, 12))
    with pytest.raises(ValueError, match=r"got torch.float64"):
        model_new(torch.randn(10, 12, dtype=torch.float64))


def test_results_are_fresh_every_call(tmp_path: Path) -> None:
    _, model_new, inputs = models(NESTED, propose(NESTED), tmp_path)
    kept = model_new(*inputs)
    first = [y.clone() for y in kept]
    model_new(torch.randn(10, 12))
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def test_results_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    text = source("return x.softmax(-1).sum(), F.mse_loss(x, x * x)", "torch.randn(500, 700)")
    _, model_new, inputs = models(text, propose(text), tmp_path)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = model_new(*inputs)
        torch.set_num_threads(2)
        two = model_new(*inputs)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_running_statistics_are_updated_as_in_the_reference(tmp_path: Path) -> None:
    model, model_new, inputs = models(BATCH_NORM, propose(BATCH_NORM), tmp_path)
    for _ in range(2):
        model(*inputs)
        model_new(*inputs)
    for name, wanted in model.state_dict().items():
        torch.testing.assert_close(model_new.state_dict()[name], wanted)


def test_modules_and_parameters_in_containers_are_found(tmp_path: Path) -> None:
    prove(
        source(
            "x = self.norms['0'](x) * self.gains['a-b']; return self.norms['last'][0](x).relu() + self.rest[1]",
            "torch.randn(8, 16)",
            init="self.norms = nn.ModuleDict([('0', nn.LayerNorm(16)), ('last', nn.ModuleList([nn.LayerNorm(16)]))]); "
            "self.gains = nn.ParameterDict([('a-b', nn.Parameter(torch.randn(16)))]); "
            "self.rest = nn.ParameterList([torch.randn(16), torch.randn(16)])",
        ),
        tmp_path,
    )


def test_windows_need_no_padded_copy() -> None:
    text = source(
        "return F.silu(F.conv1d(F.pad(x, (3, 0)), self.w, groups=6)) + F.avg_pool1d(F.pad(x, (1, 2)), 4, 1)",
        "torch.randn(2, 6, 40)",
        init="self.w = nn.Parameter(torch.randn(6, 1, 4))",
    )
    found = propose(text).source
    assert "Nothing is left to torch" in found and found.count('extern "C"') == 2


def test_a_number_that_forward_writes_out_reaches_the_library(tmp_path: Path) -> None:
    prove(source("return torch.cat([x.exp(), torch.tensor([2.0])])", "torch.randn(9)"), tmp_path)


def test_one_kernel_serves_equal_work() -> None:
    text = source(
        "for layer in self.layers:\n            x = torch.tanh(layer(x)) * 2\n        return x",
        "torch.randn(8, 16)",
        init="self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))",
    )
    assert propose(text).source.count('extern "C"') == 1


MAKING = source(  # tensors of no other tensor: outputs, what reductions leave, constants, torch's own
    "y = F.silu(self.net(x)); z = torch.sort(y * torch.tensor([1.0, 2.0]).repeat(6)).values; "
    "return z.cumsum(1) + torch.arange(12), y.sum(), torch.ones(2, 3).tril()",
    "torch.randn(10, 12)",
    init="self.net = nn.Linear(12, 12)",
)
_FACTORIES = {"arange", "empty", "full", "ones", "tensor", "zeros", "scalar_tensor", "eye", "linspace"}


@pytest.mark.parametrize("language", ["cpp", "triton", "cuda"])
def test_no_tensor_is_of_the_default_dtype_or_device(language: str) -> None:
    calls = [n for n in ast.walk(ast.parse(propose(MAKING, language).source)) if isinstance(n, ast.Call)]
    names = [(ast.unparse(n.func).split("."), n) for n in calls]
    made = [call for (room, *path), call in names if room == "torch" and _FACTORIES & set(path)]
    assert len(made) >= 3
    for call in made:
        assert {"dtype", "device"} <= {each.arg for each in call.keywords}, ast.unparse(call)


def test_it_computes_the_same_whatever_the_defaults_are(tmp_path: Path) -> None:
    _, model_new, inputs = models(MAKING, propose(MAKING), tmp_path)
    right = model_new(*inputs)
    try:
        for dtype, device in ((torch.float64, None), (torch.bfloat16, None), (torch.float32, "meta")):
            torch.set_default_dtype(dtype)
            torch.set_default_device(device)
            for ours, wanted in zip(model_new(*inputs), right, strict=True):
                assert (ours.dtype, ours.device) == (wanted.dtype, wanted.device)
                assert torch.equal(ours, wanted)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
