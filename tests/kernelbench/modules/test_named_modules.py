"""Modules by their names: imported and constructed where they are asked for, and as tasks of the command line."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import KernelwrightError, UsageError
from kernelwright.kernelbench.modules.inputs import parse
from kernelwright.kernelbench.modules.locating import draw, locate
from kernelwright.kernelbench.modules.worker import named_module

LAYERS = """
import torch
from torch import nn

from .sizes import WIDTH


class Block(nn.Module):
    def __init__(self, width, act="relu", scale=1.0):
        super().__init__()
        self.linear = nn.Linear(width, WIDTH)
        self.act, self.scale = act, scale

    def forward(self, x):
        return getattr(torch, self.act)(self.linear(x)) * self.scale


class Config:
    width = 24


class Configured(Block):
    def __init__(self, config):
        super().__init__(config.width)


def build(width=8):
    return nn.Sequential(nn.Linear(width, width), nn.Dropout())


def double(x):
    return x * 2


ready = Block(8)
number = 3
"""


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    package = folder / "own_layers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("WIDTH = 16\n")
    (package / "blocks.py").write_text(LAYERS)
    (folder / "broken.py").write_text("import nothing_of_this_name\n")
    (folder / "leaves.py").write_text("raise SystemExit(3)\n")
    return folder


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("layers.py:Block", ("layers.py", "Block")),
        ("some/folder/layers.py:Outer.Inner", ("some/folder/layers.py", "Outer.Inner")),
        ("torch.nn:LayerNorm", ("torch.nn", "LayerNorm")),
        ("hf:llama", ("hf", "llama")),
        ("hf:gpt-neox", ("hf", "gpt-neox")),
        ("hf:ScalingIntelligence/KernelBench:2/40", None),
        ("builtin:level1", None),
        ("kernelbench:2", None),
        ("kernelbench:2/40", None),
        ("file:mytask", None),
        ("layers.py", None),
    ],
)
def test_a_name_of_a_module_is_told_from_other_names(name: str, where: tuple[str, str] | None) -> None:
    assert named_module(name) == where


@pytest.mark.parametrize(
    ("name", "init", "width"),
    [
        ("Block", ["8"], 8),
        ("Block", ["width=8", "act='tanh'"], 8),
        ("Block", ["2 * WIDTH"], 32),
        ("Configured", ["Config()"], 24),
        ("Configured", ["config=Config()"], 24),
        ("ready", [], 8),
    ],
)
def test_a_class_is_constructed_as_its_module_would(
    project: Path, name: str, init: list[str], width: int
) -> None:
    made = locate("own_layers/blocks.py", name, init, [], project)
    assert "Block" in [kind.__name__ for kind in type(made).__mro__]
    assert made.linear.in_features == width and not made.training


def test_a_function_that_builds_a_module_is_called(project: Path) -> None:
    made = locate("own_layers/blocks.py", "build", ["4"], parse(["2,4:bf16"]), project)
    assert isinstance(made, nn.Sequential) and not made.training
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}
    assert locate("own_layers.blocks", "double", [], [], project)(2) == 4


@pytest.mark.parametrize(
    ("where", "name", "init", "message"),
    [
        ("own_layers/blocks.py", "Block", [], "missing 1 required positional argument: 'width' — give --init width=…"),
        ("own_layers/blocks.py", "Block", ["8", "act=tanh"], "name 'tanh' is not defined — give Python; a text as act='\"tanh\"'"),
        ("own_layers/blocks.py", "Blok", ["8"], "blocks.py has no Blok — it has Block, Config, Configured, build, double"),
        ("own_layers/blocks.py", "Config", [], "is neither a module nor a function"),
        ("own_layers/blocks.py", "number", [], "is neither a module nor a function"),
        ("own_layers/blocks.py", "ready", ["8"], "is a module already — leave out --init"),
        ("own_layers/blocks.py", "double", ["8"], "returned no module — leave out --init"),
        ("broken.py", "A", [], "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("leaves.py", "A", [], "cannot be imported: SystemExit: 3"),
        ("nowhere.at_all", "A", [], "there is no module nowhere.at_all — give FILE.py:NAME, or install its package"),
    ],
)  # fmt: skip
def test_what_is_not_there_or_fails_is_told_in_one_line(
    project: Path, where: str, name: str, init: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        locate(where, name, init, [], project)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_inputs_are_drawn_by_the_code_that_the_task_gets() -> None:
    drawn = draw(parse(["4,8:bf16", "4<10", "0.5", "mask=4:bool"]))
    assert drawn.codes == (
        "torch.randn(4, 8, dtype=torch.bfloat16)",
        "torch.randint(0, 10, (4,))",
        "torch.rand(4) < 0.5",
    )
    x, index, scale = drawn.args
    assert (x.dtype, index.dtype, scale, drawn.kwargs["mask"].dtype) == (
        torch.bfloat16,
        torch.int64,
        0.5,
        torch.bool,
    )


def test_a_config_of_transformers_is_a_model_with_random_weights() -> None:
    pytest.importorskip("transformers")
    small = ["hidden_size=32", "intermediate_size=64", "num_hidden_layers=1", "num_attention_heads=4"]
    small += ["num_key_value_heads=2", "vocab_size=50"]
    model = locate("hf", "llama", small, [], Path())
    assert type(model).__name__ == "LlamaModel" and not model.config.use_cache
    eager = locate("hf", "llama", [*small, "attn_implementation='eager'"], [], Path())
    assert eager.config._attn_implementation == "eager" != model.config._attn_implementation
    for name in ("llama", "LlamaForCausalLM"):
        made = locate("hf", name, [*small, "dtype=bfloat16"], [], Path())
        assert {p.dtype for p in made.parameters()} == {torch.bfloat16}
    assert type(made).__name__ == "LlamaForCausalLM"
    t5 = ["d_model=32", "d_ff=64", "d_kv=8", "num_layers=1", "num_heads=4", "decoder_start_token_id=7"]
    assert locate("hf", "T5ForConditionalGeneration", t5, [], Path()).config.decoder_start_token_id == 7
    for name, init, message in (
        ("lama", [], "transformers has no model lama — give hf:llama"),
        ("llama", ["hidden_siz=3"], "LlamaConfig has no setting hidden_siz"),
        ("llama", ["num_hidden_layers=2000"], "GiB of weights by its default sizes — give smaller ones"),
    ):
        with pytest.raises(KernelwrightError) as raised:
            locate("hf", name, init, [], Path())
        assert message in str(raised.value)


@pytest.mark.builds
def test_a_module_is_a_task_that_a_worker_writes(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the user's is imported here."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(home))
    (task,) = sources.resolve(["own_layers/blocks.py:Block"], inputs=["4,8"], init=["8", "scale=0.5"])
    assert task.id == "module:blocks.Block" and task.slug == "module_blocks.Block"
    assert "self.linear.weight = nn.Parameter(torch.randn(16, 8)" in task.source
    assert "return [torch.randn(4, 8)]" in task.source
    with pytest.raises(UsageError, match="Block fails with these inputs: RuntimeError"):
        sources.resolve(["own_layers/blocks.py:Block"], inputs=["4,9"], init=["8"])


def test_what_is_no_module_takes_no_inputs(project: Path) -> None:
    with pytest.raises(
        UsageError, match="--input is for a module, and builtin:level1/relu has inputs of its own"
    ):
        sources.resolve(["builtin:level1/relu"], inputs=["4,8"])
    with pytest.raises(UsageError, match=r"layers.py:A has no example inputs — give --input"):
        (project / "layers.py").write_text("")
        sources.resolve([str(project / "layers.py") + ":A"])


def test_a_file_without_a_model_is_told_how_to_be_named(project: Path) -> None:
    (project / "plain.py").write_text(
        "from torch import nn\nclass Act(nn.Module):\n    def forward(self, x):\n        return x\n"
    )
    with pytest.raises(UsageError) as raised:
        sources.resolve([str(project / "plain.py")])
    assert "defines no class Model — name a class and its inputs: " in str(raised.value)
    assert "plain.py:Act --input 8,128,256" in str(raised.value)
