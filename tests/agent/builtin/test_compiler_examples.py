"""Worked examples in the compiler's module docstrings: each line of theirs is one that the compiler prints."""

import doctest
import importlib

import pytest

from kernelwright.agent.builtin.coder import LANGUAGES
from kernelwright.agent.builtin.compile import compile_graph
from kernelwright.agent.builtin.dump import Dump
from kernelwright.agent.builtin.schedule import Schedule
from tests.helpers.builtin.proving import graph_of, source, task

CENTRED = """c = x - x.mean((1, 2), keepdim=True)
        return c.square().sum((1, 2)), c.transpose(1, 2).contiguous()"""
NORMALISED = """h = x - x.mean(1, keepdim=True)
        return h / h.abs().sum(1, keepdim=True)"""
ACTIVATED = """a, b = self.a(x), self.b(x)
        return torch.sigmoid(a), torch.sigmoid(b), torch.tanh(a)"""
RECURRENT = """h = x[:, 0] * 0
        for t in range(32):
            h = torch.tanh(h * 0.5 + x[:, t])
        return h"""
HALVES = """a, b = torch.sigmoid(x).chunk(2, 1)
        return a * b"""
STEPS = """h = x[:, 0] * 0
        for t in range(4):
            h = torch.tanh(self.l(x[:, t]) + h)
        return h"""
TWO_LARGEST = """values, indices = torch.topk(x, 2, dim=-1)
        return values, indices"""
ATTENTION = """s = (q @ k.transpose(-1, -2)) * 0.125
        return torch.softmax(s, -1) @ v"""
LAYERS = "self.a = nn.Linear(64, 32); self.b = nn.Linear(64, 32)"
SOFTMAX = "return torch.softmax(x, -1)"
SOFTMAX_BY_COLUMN = source("return torch.softmax(x, 1)", "torch.randn(16, 64, 512)")
TRANSPOSED = source("return x.T.contiguous() + 1", "torch.randn(1024, 512)")
CONVOLUTIONS = "self.a = nn.Conv2d(64, 64, 3, padding=1); self.b = nn.Conv2d(64, {}, 3, padding=1)"
SUM = "return x.sum({})"

# Of each module: the tasks that its example is about.
EXAMPLES = {
    "fusion.fuse": [source("return x / x.sum(1, keepdim=True), x.mean(0)", "torch.randn(512, 1024)")],
    "fusion.recompute": [source(CENTRED, "torch.randn(8, 64, 128)")],
    "scheduling.loop_nest": [
        source("return torch.relu(x)", "torch.randn(64, 512)"),
        source(SOFTMAX, "torch.randn(2048, 4096)"),
        SOFTMAX_BY_COLUMN,
        TRANSPOSED,
    ],
    "scheduling.passes": [
        source(SOFTMAX, "torch.randn(2048, 4096)"),
        source(NORMALISED, "torch.randn(512, 1024)"),
    ],
    "scheduling.in_place": [
        source("return self.l(x).relu()", "torch.randn(64, 256)", "self.l = nn.Linear(256, 512)")
    ],
    "scheduling.launches": [source(ACTIVATED, "torch.randn(16, 64)", LAYERS)],
    "passes.reroll": [source(RECURRENT, "torch.randn(256, 32, 16)")],
    "passes.split_values": [source(HALVES, "torch.randn(64, 512)")],
    "passes.concat": [source("return torch.cat([torch.exp(x), torch.tanh(x)], dim=1) * 2", "torch.randn(512, 64)")],
    "passes.repeated": [
        source(
            "return codes * 2.0 ** (exponents.int() - 127).unsqueeze(-1)",
            "torch.randint(-128, 128, (512, 64, 32), dtype=torch.int8), "
            "torch.randint(110, 130, (512, 64), dtype=torch.uint8)",
            arguments="codes, exponents",
        )
    ],
    "passes.batch_linear": [source(STEPS, "torch.randn(64, 4, 128)", "self.l = nn.Linear(128, 128)")],
    "passes.match_attention": [
        source(ATTENTION, ", ".join(["torch.randn(2, 8, 128, 64)"] * 3), arguments="q, k, v")
    ],
    "lowering.topk": [source(TWO_LARGEST, "torch.randn(512, 1000)")],
    "passes.short_rows": [source(SUM.format(-1), "torch.randn(1024, 64, 3)")],
    "passes.permute_producers": [
        source("return torch.exp(x).transpose(1, 2).contiguous()", "torch.randn(8, 64, 128)")
    ],
    "lowering.pooling": [source("return F.max_pool2d(x, 3, 2, 1)", "torch.randn(2, 3, 8, 8)")],
    "codegen.cpp.columns": [SOFTMAX_BY_COLUMN],
    "codegen.cpp.tiles": [TRANSPOSED],
    "codegen.cuda.rows": [source(SOFTMAX, "torch.randn(2048, 1000)")],
}  # fmt: skip


def printed(text: str, language: str = "cpp") -> str:
    """Every form of a task, its source and the candidate, without line breaks and indentation."""
    forms, chosen = Dump(), LANGUAGES[language]
    rendered = compile_graph(graph_of(task(text)), text, Schedule.from_dict(chosen.defaults), chosen, forms)
    return " ".join(f"{text} {forms} {rendered.source}".split())


def example(module: str) -> list[str]:
    """The indented blocks of a module's docstring, as they would be printed on one line."""
    text = importlib.import_module(f"kernelwright.agent.builtin.{module}").__doc__
    blocks = [block for block in text.split("\n\n") if block.startswith("    ")]
    return [
        " ".join(line.split()) for block in blocks for line in block.replace("\n        :", " :").split("\n")
    ]


@pytest.mark.parametrize("module", EXAMPLES)
def test_an_example_is_what_the_compiler_makes_of_it(module: str) -> None:
    language = "cuda" if ".cuda." in module else "cpp"
    whole = "\n".join(printed(text, language) for text in EXAMPLES[module])
    lines = example(module)
    assert lines
    assert [line for line in lines if line not in whole] == []


@pytest.mark.parametrize("module", ["ir.space", "ir.program", "codegen.c_like"])
def test_an_example_in_python_gives_what_it_says(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"kernelwright.agent.builtin.{module}"))
    assert result.attempted and not result.failed


@pytest.mark.parametrize(
    ("forward", "channels", "layout"),
    [("F.relu(self.b(F.relu(self.a(x))))", 64, "channels_last"), ("F.relu(self.b(x))", 128, "contiguous")],
)
def test_images_begin_in_the_layout_of_the_example(forward: str, channels: int, layout: str) -> None:
    text = source(f"return {forward}", "torch.randn(8, 64, 56, 56)", CONVOLUTIONS.format(channels))
    assert f"layout={layout}" in printed(text)


def test_few_long_columns_and_long_rows_are_scheduled_as_in_the_examples() -> None:
    assert "part * 65536 / PARTS" in printed(source(SUM.format(0), "torch.randn(65536, 64)"))
    assert "online=on" in printed(source(SOFTMAX, "torch.randn(8, 262144)"))
    down = printed(source(SUM.format(1), "torch.randn(16, 64, 512)"), "cuda")
    assert "LANES = 16, WIDE = 32" in down and "down_lanes<WIDE, LANES>" in down
