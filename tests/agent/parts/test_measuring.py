"""Real models are cut; each part stands alone, and the whole is what it was when put together from them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernelwright.agent.parts.assembly import PlacedPart, assembled
from kernelwright.agent.parts.measuring import Submodules
from tests.helpers.parts import TASK

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submodules that call no other take a second."""
    if "timed" in request.keywords:
        return

    def took(within: dict[str, dict[str, None]], path: str) -> float:
        return sum(took(within, inner) for inner in within.get(path, ())) or 1.0

    def time(self: Submodules) -> None:
        for path, each in self.seen.items():
            each.times.append(took(self.nested.within, path))

    monkeypatch.setattr(Submodules, "_time", time)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a worker's


def submodules(source: str, precision: str = "task") -> Submodules:
    return Submodules("file:x", source, precision, "cpu")


def loaded(source: str) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": "part"}
    exec(compile(source, "part.py", "exec"), module)
    return module


def candidates(parts: list[dict[str, Any]]) -> list[PlacedPart]:
    return [
        PlacedPart(
            part["places"], part["is_plain"], part["source"].replace("class Model(", "class ModelNew(")
        )
        for part in parts
    ]


def by_places(parts: list[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    return {part["places"][0]: part for part in parts}


def test_parts_are_tasks_of_their_own() -> None:
    parts = by_places(submodules(TASK).parts())
    block, head = parts["blocks.0",], parts["head",]
    assert block["places"] == (("blocks.0",), ("blocks.1",), ("blocks.2",)) and block["is_plain"]
    assert head["places"] == (("head",),) and not head["is_plain"]
    assert (block["share"], head["share"]) == (0.75, 0.25)
    assert "class Head" not in block["source"] and "self.part = Block(256)" in block["source"]
    assert "def forward(self, x):\n        return self.part(x, power=2)" in head["source"]
    for part in (block, head):
        module = loaded(part["source"])
        [x] = module["get_inputs"]()
        assert x.shape == (256, 256) and module["Model"](*module["get_init_inputs"]())(x).shape == x.shape


def test_the_whole_from_its_parts_is_the_reference_with_its_weights() -> None:
    parts = submodules(TASK).parts()
    text, left = assembled(TASK, candidates(parts))
    assert left == {} and "def get_inputs" not in text
    theirs, ours = loaded(TASK), loaded(text)
    reference, model = theirs["Model"](256), ours["ModelNew"](256)
    model.load_state_dict(reference.state_dict())
    model.load_state_dict(model.state_dict())  # its own names, too
    [x] = theirs["get_inputs"]()
    torch.testing.assert_close(model(x), reference(x))
    assert type(model.blocks[2]).__mro__[1].__name__ == "ModelNew_blocks_0"
    reference.blocks[2].scale.data.mul_(2.0)
    assert not torch.allclose(model(x), reference(x))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict({**reference.state_dict(), "blocks.1.bias": torch.zeros(1)})


@pytest.mark.timed
def test_shares_are_those_of_the_time() -> None:
    source = TASK.replace("import torch\n", "import time\n\nimport torch\n", 1)
    source = source.replace(
        "            x = torch.abs(x * self.scale",
        "            time.sleep(0.002)\n            x = torch.abs(x * self.scale",
    )
    source = source.replace(
        "            x = torch.abs(x * self.gain",
        "            time.sleep(0.003)\n            x = torch.abs(x * self.gain",
    )
    parts = by_places(submodules(source).parts())
    assert parts["blocks.0",]["share"] == pytest.approx(2 / 3, abs=0.1)
    assert parts["head",]["share"] == pytest.approx(1 / 3, abs=0.1)


WHOLE = """
import torch
from torch import nn

class Layers(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.first = nn.Sequential({layers})
    def forward(self, x):
        return self.first(x)

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.left, self.right = Layers(features), nn.Sequential(nn.Linear(features, features), nn.ReLU(True))
        {more}
    def forward(self, x):
        return {forward}

def get_inputs():
    return [torch.rand(128, 128)]

def get_init_inputs():
    return [128]
"""


def whole(layers: str = "nn.Linear(features, features), nn.Tanh()", more: str = "", forward: str = "") -> str:
    return WHOLE.format(layers=layers, more=more, forward=forward or "self.right(self.left(x))")


def test_a_submodule_whose_construction_is_not_known_is_taken_out_of_the_whole() -> None:
    source = whole(more="self.left.first.append(nn.Linear(features, features))")
    part = by_places(submodules(source).parts())["left",]
    assert "self.part = Whole(128).left" in part["source"] and "class Whole(nn.Module)" in part["source"]
    assert "get_inputs" in part["source"] and "torch.rand(128, 128)" in part["source"]


def test_a_run_of_a_chain_takes_its_activation_with_it() -> None:
    layers = ", ".join(["nn.Linear(features, features), nn.ReLU(inplace=True)"] * 4)
    source = whole(f"nn.Sequential({layers})", forward="self.left(x)")
    parts = by_places(submodules(source).parts())
    assert parts and all(len(place) % 2 == 0 for place in parts)
    first = next(iter(parts.values()))
    assert "torch.nn.ReLU(inplace=True)" in first["source"] and "torch.nn.Sequential(" in first["source"]


@pytest.mark.parametrize(
    "forward",
    [
        "self.right(x) @ self.left.first[0].weight",  # which only the submodule has
        "self.right(self.left(x.T).T)",  # called in two ways
    ],
)
def test_a_submodule_that_is_used_otherwise_than_by_a_call_is_none(forward: str) -> None:
    found = submodules(whole(more="self.unused = None", forward=f"self.left(x) @ {forward}"))
    assert ("left",) not in by_places(found.parts())


def test_attributes_of_a_submodule_can_be_read_where_its_part_is() -> None:
    """As torch's TransformerEncoder does with its layers."""
    source = whole(more="self.left.factor = 2.0", forward="self.right(self.left(x)) * self.left.factor")
    assert ("left",) in by_places(submodules(source).parts())


def test_weights_that_the_constructor_of_the_whole_changes_are_loaded_all_the_same() -> None:
    source = whole(more="nn.init.zeros_(self.left.first[0].bias); self.left.first[0].weight.data.mul_(3)")
    parts = submodules(source).parts()
    assert len(parts) == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("torch.randn(8, 16, 32).transpose(1, 2)", "(torch.randn(8, 16, 32)).permute(0, 2, 1)"),
        ("torch.randn(8, 16, 32)[:, :, :16]", "(torch.randn(4080)).as_strided((8, 16, 16), (512, 32, 1))"),
        ("torch.randn(8, 16) * 100", "torch.randn(8, 16) * 1e+02"),
        ("torch.randn(8, 16).relu()", "torch.randn(8, 16).relu()"),
        ("torch.rand(8, 16) + 0.1", "torch.rand(8, 16)"),
        ("torch.zeros(8, 16)", "torch.full((8, 16,), 0.0)"),
        ("torch.arange(16)", "torch.arange(16)"),
        ("torch.arange(16).int() * 2", "(torch.randint(0, 31, (16,))).to(torch.int32)"),
        ("torch.ones(4, 4).tril() > 0", "torch.rand(4, 4) < 0.62"),
    ],
)
def test_inputs_are_laid_out_as_they_are_in_the_whole(given: str, text: str) -> None:
    from kernelwright.agent.builtin.frontend.export import meta_of
    from kernelwright.agent.parts.inputs import input_text

    torch.manual_seed(0)
    value = eval(given, {"torch": torch})
    found = input_text(value, meta_of(value), True)
    assert found is not None
    made = eval(found, {"torch": torch})
    assert (made.shape, made.stride(), made.dtype) == (value.shape, value.stride(), value.dtype)
    assert "1e+02" in text or found == text or found.startswith(text.split(" *")[0])


def test_values_that_no_random_numbers_stand_for_are_none() -> None:
    from kernelwright.agent.builtin.frontend.export import meta_of
    from kernelwright.agent.parts.inputs import input_text

    mask = torch.full((4, 4), -torch.inf).triu(1)
    assert input_text(mask, meta_of(mask), True) is None


def test_parts_have_the_dtype_of_the_task() -> None:
    source = TASK.replace("torch.randn(256, 256)", "torch.randn(256, 256, dtype=torch.float64)")
    source = source.replace(
        "        self.head = Head(features)", "        self.head = Head(features)\n        self.double()"
    )
    parts = submodules(source).parts()
    assert all("torch.float64" in part["source"] for part in parts)
    assert isinstance(loaded(parts[0]["source"])["Model"]().part, nn.Module)
