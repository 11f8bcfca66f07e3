"""Tasks keep their own types: of inputs, of weights, of init arguments and of outputs."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelwright.kernelbench.evaluator.reference.loading import pickled, unpickled
from kernelwright.kernelbench.evaluator.reference.outputs import NotAnOutput, flattened
from kernelwright.kernelbench.evaluator.reference.task_format import TaskFault, constructor_inputs, for_device
from kernelwright.kernelbench.records import Precision, Task
from tests.helpers.evaluator.references import error, oracle, task

CPU = torch.device("cpu")
Candidate = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FAMILIES = ("zero_centred", "heavy_tailed", "needle", "edge", "perturbed")


@pytest.mark.parametrize(
    "kind", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
def test_inputs_and_weights_keep_their_dtypes(kind: str, tmp_path: Path) -> None:
    draw = f"[torch.randn(64, 128).to(torch.{kind}), torch.rand(64)]"
    init = f"self.w = nn.Parameter(torch.rand(128).to(torch.{kind}))"
    made = oracle(
        task("return (x.float() * s[:, None]) @ self.w.float()", draw=draw, init=init, inputs=", x, s"),
        tmp_path,
    )
    assert [t.dtype for t in made.layout.tensors] == [kind, "float32"]
    assert made.reference.model.w.dtype is getattr(torch, kind)
    w = made.reference.model.w.float()
    for family in ("task", *FAMILIES):
        made.fill([0], [11], family)
        assert error(made, lambda x, s: (x.float() * s[:, None]) @ w) <= 1.0
        assert error(made, lambda x, s: x.float() @ w) > 1.0


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("forward, other", [
    ("return x.cumsum(1)", lambda x: torch.stack([x[:, : i + 1].sum(1) for i in range(128)], 1)),
    ("return x.softmax(-1)", lambda x: (lambda e: e / e.sum(-1, True))((x - x.amax(-1, True)).exp())),
    ("return x @ x.T", lambda x: torch.einsum("ik,jk->ij", x, x)),
    ("return x.square().mean()", lambda x: (x * x).flatten().sum() / x.numel()),
])  # fmt: skip
def test_the_same_in_another_order_is_within_the_budget(
    kind: str, forward: str, other: Candidate, tmp_path: Path
) -> None:
    made = oracle(task(forward, draw=f"[torch.randn(64, 128, dtype=torch.{kind})]"), tmp_path)
    for family in ("task", "zero_centred", "heavy_tailed"):
        made.fill([0], [12], family)
        assert error(made, lambda x: other(x.double()).to(x.dtype)) <= 1.0
        made.fill([0], [13], family)
        wrong = lambda x: (other(x.double()) * 1.5).to(x.dtype)  # noqa: E731
        assert error(made, wrong) > 1.0


def test_a_precision_that_is_given_casts_them(tmp_path: Path) -> None:
    source = task("return x @ self.w", draw="[torch.randn(64, 128, dtype=torch.float64)]",
                  init="self.w = nn.Parameter(torch.randn(128, 8))")  # fmt: skip
    made = oracle(source, tmp_path, "bf16")
    assert made.layout.tensors[0].dtype == "bfloat16" and made.reference.model.w.dtype is torch.bfloat16
    with pytest.raises(TaskFault, match=r"fails at forward\(float64\[64, 128\]\): RuntimeError: expected"):
        oracle(source, tmp_path)


def test_dtypes_that_cannot_be_passed_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TaskFault, match=r"input 0 a tensor that is not dense .*sparse_coo"):
        oracle(task("return x.to_dense()", draw="[torch.eye(4).to_sparse()]"), tmp_path)
    with pytest.raises(TaskFault, match="input 0 a tensor of float4"):
        draw = "[torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)]"
        oracle(task("return x.view(torch.uint8)", draw=draw), tmp_path)


def test_fp32_tasks_are_the_same_tasks_as_before() -> None:
    plain = Task(id="file:a", level=0, source="y = torch.randn(3)")
    assert plain.precision is Precision.task and plain.effective_precision is Precision.fp32
    assert plain.sha256 == plain.model_copy(update={"precision": Precision.fp32}).sha256
    half = plain.model_copy(update={"source": "y = torch.randn(3, dtype=torch.bfloat16)"})
    assert half.sha256 != half.model_copy(update={"precision": Precision.fp32}).sha256


OUTPUTS = """
@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    hidden: object = None
"""


def test_outputs_are_told_by_their_keys(tmp_path: Path) -> None:
    x, y = torch.ones(2), torch.zeros(3)
    a = flattened({"b": y, "a": (x, None)}, CPU)
    b = flattened({"a": [x, None], "b": y}, CPU)
    assert [t.shape for t in a] == [t.shape for t in b] == [(3,), (2,), (0,), (3,)]
    assert all(torch.equal(left, right) for left, right in zip(a, b, strict=True))
    other = flattened({"a": [x, None], "c": y}, CPU)
    assert not torch.equal(other[0], a[0]), "another key"
    made = oracle(task("return Out(x * 2, {'n': x.sum().item(), 'k': 3}), None", before=OUTPUTS), tmp_path)
    kinds = [t.dtype for t in made.reference.outputs]
    assert kinds == ["uint8", "uint8", "int64", "float32", "float32", "bool"]
    with pytest.raises(NotAnOutput, match="an output is the integer 9223372036854775808, which no int64"):
        flattened([1 << 63], CPU)
    with pytest.raises(NotAnOutput, match="an output is a object"):
        flattened(object(), CPU)


def test_objects_among_outputs_are_refused_by_type(tmp_path: Path) -> None:
    with pytest.raises(TaskFault, match=r"fails at forward.*an output is a Generator"):
        oracle(task("return torch.Generator()"), tmp_path)


FORMS = {
    "[8]": [8, 1e-5],
    "(8, 2.0)": [8, 2.0],
    "{'features': 8}": [8, 1e-5],
    "{'eps': 2.0, 'features': 8}": [8, 2.0],
    "[[], {'features': 8}]": [8, 1e-5],
}


@pytest.mark.parametrize("given", FORMS)
def test_init_inputs_come_in_all_forms(given: str, tmp_path: Path) -> None:
    init, arguments = "self.features, self.eps = features, eps", ", features, eps=1e-5"
    made = oracle(task("return x * self.eps", init=init, arguments=arguments, given=given), tmp_path)
    model = made.reference.model
    assert [model.features, model.eps] == FORMS[given]


def test_a_list_and_a_dict_may_be_what_the_model_takes() -> None:
    def model(layers: list[int], options: dict[str, int]) -> None: ...

    assert constructor_inputs([[1], {"a": 2}], model) == [[1], {"a": 2}]
    assert constructor_inputs([[], {"a": 2}], model) == [[], {"a": 2}]


def test_inputs_by_name_are_put_in_order(tmp_path: Path) -> None:
    draw = "{'y': torch.zeros(3), 'x': torch.ones(2)}"
    made = oracle(task("return x * 2, y", draw=draw, inputs=", x, y"), tmp_path)
    assert [t.shape for t in made.layout.tensors] == [(2,), (3,)]


WRONG = {
    "has a get_inputs that gives a Tensor": {"draw": "torch.randn(8, 16)"},
    "has a get_inputs that gives a dict which does not fit: .*'x'": {"draw": "{'z': torch.ones(2)}"},
    "has a get_inputs that gives a SimpleNamespace": {
        "draw": "[__import__('types').SimpleNamespace(x=torch.ones(2))]"},
    "has a get_init_inputs that gives a int": {"given": "3"},
    r"fails at get_inputs\(\): ZeroDivisionError": {"draw": "[1 / 0]"},
    r"fails at get_init_inputs\(\): NameError": {"given": "nothing"},
    r"fails at Model\(3\): TypeError": {"given": "[3]"},
    r"fails at forward\(float32\[2\], 'a'\): TypeError": {"draw": "[torch.ones(2), 'a']", "inputs": ", x, y",
                                                         "forward": "return x + y"},
    "fails at import: ModuleNotFoundError: No module named 'my_helpers'": {"before": "import my_helpers"},
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_the_error_says_at_which_step_and_with_what(words: str, tmp_path: Path) -> None:
    with pytest.raises(TaskFault, match=words) as fault:
        oracle(task(**({"forward": "return x"} | WRONG[words])), tmp_path)
    assert fault.value.fix
    if "my_helpers" in words:
        assert "a task is one file" in fault.value.fix


CONFIG = """
class Config:
    def __init__(self, d):
        self.d = d

def act(x):
    return x
"""


def test_objects_of_the_tasks_own_classes_reach_the_candidate(tmp_path: Path) -> None:
    source = task("return x @ self.w", init="self.w = nn.Parameter(torch.randn(c.d, 8))", arguments=", c",
                  given="[Config(128)]", before=CONFIG)  # fmt: skip
    made = oracle(source, tmp_path)
    sent = pickled(made.reference.init)
    without = ModuleType("candidate")
    (config,) = unpickled(sent, without)
    assert config.d == 128 and type(config).__name__ == "Config"
    with_its_own = ModuleType("candidate")
    exec(CONFIG, with_its_own.__dict__)
    (config,) = unpickled(sent, with_its_own)
    assert type(config) is with_its_own.Config and config.d == 128


@pytest.mark.parametrize("given", ["lambda: 128", "act"])
def test_functions_of_the_task_cannot_and_are_named(given: str, tmp_path: Path) -> None:
    made = oracle(task("return x", arguments=", f", given=f"[{given}]", before=CONFIG), tmp_path)
    with pytest.raises(TaskFault, match=r"get_init_inputs whose item 0.*cannot be given to a candidate"):
        made.setup()
    assert unpickled(pickled([torch.relu]), ModuleType("candidate")) == [torch.relu]


def test_cuda_in_a_task_is_the_device_that_it_runs_on(tmp_path: Path) -> None:
    source = """x = torch.randn(3, device="cuda").cuda() + f(  # here
    y.to('cuda:0').cuda(0))
if x.device.type == "cuda": print(f"on cuda", "cudart")
"""
    changed = for_device(source, CPU)
    assert changed.splitlines()[0] == 'x = torch.randn(3, device="cpu").cpu() + f(  # here'
    assert changed.splitlines()[1] == '    y.to("cpu").cpu())'
    assert changed.splitlines()[2] == source.splitlines()[2]
    assert for_device(source, torch.device("cuda:0")) == source
    compared = 'few = torch.rand(9, device="cuda") < 0.5 or x.device == torch.device("cuda")\n'
    assert for_device(compared, CPU) == compared.replace('9, device="cuda"', '9, device="cpu"')
    separated = (
        'a = "\f\x1c\u2028"; b = torch.ones(1, device="cuda")  # \x85\nc = f"cuda:{rank}", f"{cuda}"\n'
    )
    expected = separated.replace('"cuda"', '"cpu"').replace('f"cuda:{rank}"', '"cpu"')
    assert for_device(separated, CPU) == expected
    draw = "[torch.randn(64, 128, device='cuda')]"
    made = oracle(task("return (x + torch.ones(128, device='cuda')).cuda()", draw=draw), tmp_path)
    assert error(made, lambda x: x + 1) <= 1.0


def test_inputs_that_are_no_tensors_stay_what_they_are(tmp_path: Path) -> None:
    draw = "[[torch.randn(8), torch.randn(3)], 2.5, None, {'k': torch.ones(2), 'mode': 'up'}]"
    made = oracle(
        task("return [t * s for t in ts] + [d['k']]", draw=draw, inputs=", ts, s, none, d"), tmp_path
    )
    assert [value for _, value, _ in made.reference.leaves] == [None, None, 2.5, None, None, "up"]
    assert len(made.reference.outputs) == 3
