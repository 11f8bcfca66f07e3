"""One file of two candidates: names are kept apart, and both work on the same weights."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelwright.agent.builtin.coder import LANGUAGES
from kernelwright.agent.builtin.frontend.reference import renamed
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.agent.builtin.sizes.dispatch import dispatching
from kernelwright.agent.builtin.sizes.free import compile_free
from tests.helpers.builtin.free import free_graph, free_kernels
from tests.helpers.builtin.free_tasks import OF_ROWS
from tests.helpers.builtin.proving import ruff

LARGE = '''"""Adds in one way."""

import torch
from torch import nn

STEP = 1.0
FACTOR = 2.0


def scaled(x):
    return x * FACTOR


def shifted(x):
    return scaled(x) + torch.tensor(STEP)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return shifted(x) + self.linear(x)
'''
SMALL = LARGE.replace("one way", "another way").replace("STEP = 1.0", "STEP = 5.0")


def loaded(source: str) -> ModuleType:
    module = ModuleType("merged")
    exec(compile(source, "merged.py", "exec"), module.__dict__)
    return module


def of(small: str, large: str, argument: int = 0, elements: int = 8) -> Any:
    source = dispatching(small, large, argument, elements)
    assert source is not None
    return loaded(source)


def test_each_serves_its_sizes_with_names_of_its_own() -> None:
    module = of(SMALL, LARGE)
    model, alone = module.ModelNew(4), loaded(LARGE).ModelNew(4)
    alone.load_state_dict(model.state_dict())
    few, many = torch.randn(2, 4), torch.randn(3, 4)
    torch.testing.assert_close(model(few), alone(few) + 4)
    torch.testing.assert_close(model(many), alone(many))
    assert module.FACTOR == 2.0 and not hasattr(module, "FACTOR_small")  # the same in both
    assert (module.STEP, module.STEP_small) == (1.0, 5.0)
    assert not hasattr(module, "scaled_small") and hasattr(module, "shifted_small")  # it reads STEP


def test_the_file_is_lint_clean_and_says_what_it_is(tmp_path: Path) -> None:
    source = dispatching(SMALL, LARGE, 0, 8)
    assert source is not None and ruff(source, tmp_path) == "All checks passed!\n"
    assert source.startswith('"""One candidate up to 8 elements of x, another for more."""\n\nimport torch\n')
    assert source.count("import torch\n") == 1


def test_the_reference_serves_without_what_only_its_inputs_need() -> None:
    reference = renamed(
        SMALL.replace("ModelNew", "Model")
        + "\nrows = 4\ndef get_inputs():\n    return [torch.randn(rows, 4)]\n"
    )
    module = of(reference, LARGE)
    assert module.ModelNew(4)(torch.zeros(2, 4)).shape == (2, 4)
    assert not {"rows", "rows_small", "get_inputs", "get_inputs_small"} & set(vars(module))


@pytest.mark.parametrize(
    ("old", "new"),
    {
        "other weights": ("nn.Linear(features, features)", "nn.Linear(features, features, bias=False)"),
        "another argument": ("def forward(self, x):", "def forward(self, x, y=None):"),
        "a method of its own": (
            "    def forward(self, x):\n        return shifted(x)",
            "    def more(self, x):\n        return x\n\n"
            "    def forward(self, x):\n        return self.more(x)",
        ),
        "a name in an f-string": (
            "return scaled(x) + torch.tensor(STEP)",
            'print(f"{STEP}")\n    return scaled(x) + torch.tensor(STEP)',
        ),
        "a keyword": (
            "return scaled(x) + torch.tensor(STEP)",
            "return scaled(x) + dict(STEP=1)['STEP'] + STEP",
        ),
    }.values(),
)
def test_what_has_too_little_in_common_is_left_apart(old: str, new: str) -> None:
    assert SMALL.replace(old, new) != SMALL
    assert dispatching(SMALL.replace(old, new), LARGE, 0, 8) is None


def test_attributes_and_strings_keep_their_names() -> None:
    small = SMALL.replace(
        "return scaled(x) + torch.tensor(STEP)", 'assert "STEP"\n    return scaled(x) + STEP + x.STEP'
    )
    source = dispatching(small, LARGE, 0, 8)
    assert source is not None
    assert 'assert "STEP"\n    return scaled(x) + STEP_small + x.STEP\n' in source


@pytest.mark.slow
@pytest.mark.builds
def test_two_schedules_in_one_file_are_right_at_all_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = OF_ROWS["add_norm"]
    otherwise = Schedule.from_dict({"k0.keep": "off"})
    small = compile_free(free_graph(text, rows=300), text, otherwise, LANGUAGES["cpp"]).source
    large = free_kernels(text, rows=300).source
    source = dispatching(small, large, 0, 5 * 96)
    assert source is not None and ruff(source, tmp_path) == "All checks passed!\n"
    model, alone = loaded(source).ModelNew(), loaded(large).ModelNew()
    alone.load_state_dict(model.state_dict())
    for rows in (1, 5, 6, 301):
        inputs = [torch.randn(rows, 96), torch.randn(rows, 96)]
        torch.testing.assert_close(model(*inputs), alone(*inputs))
