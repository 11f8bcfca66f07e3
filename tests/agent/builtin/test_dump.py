"""Every form of a task as text; the walk in docs/compiler.md is one of them."""

from pathlib import Path

import pytest

from kernelwright.agent.builtin.coder import LANGUAGES
from kernelwright.agent.builtin.compile import PASSES, compile_graph
from kernelwright.agent.builtin.dump import Dump
from kernelwright.agent.builtin.dump import text as form_of
from kernelwright.agent.builtin.lowering.lower import lower
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.kernelbench import sources
from tests.helpers.builtin.proving import graph_of, source, task

DOCUMENT = Path(__file__).parents[3] / "docs" / "compiler.md"


def dumped(text: str, language: str = "cpp") -> str:
    forms = Dump()
    chosen = LANGUAGES[language]
    compile_graph(graph_of(task(text)), text, Schedule.from_dict(chosen.defaults), chosen, forms)
    return str(forms)


def test_the_walk_of_the_document_is_what_is_printed() -> None:
    [softmax] = sources.resolve(["builtin:level1/softmax"])
    printed = dumped(softmax.source)
    forms = [block.partition("```")[0] for block in DOCUMENT.read_text().split("```text\n")[1:]]
    assert len(forms) == 4
    for form in forms:
        assert form.replace("    ...\n", "") in printed
    assert all(run.__name__ in printed for run in PASSES)


FORMS = {
    "a library call": ("return self.square(x).relu()", "torch.randn(4, 8)", "torch: aten.linear(%x, "),
    "a scan": ("return x.exp().cumsum(-1) + 1", "torch.randn(4, 4096)", "scan sum(%exp[4, 4096], axis 1)"),
    "a constant": ("return x * 2 + 1", "torch.randn(4, 8)", "mul(%x[4, 8], 2)"),
    "steps of a recurrence": (
        "h = x[:, 0] * 0\n        for t in range(32):\n            h = torch.tanh(h * 0.5 + x[:, t])\n        return h",
        "torch.randn(256, 32, 16)",
        "32 steps of",
    ),
    "attention": (
        "return F.scaled_dot_product_attention(x, x, x)",
        "torch.randn(2, 2, 16, 8)",
        "attention(%x[2, 2, 16, 8], %x[2, 2, 16, 8], %x[2, 2, 16, 8], scale=0.353553, causal=False)",
    ),
    "a concatenation": (
        "return torch.cat([torch.exp(x), torch.tanh(x)], dim=1) * 2",
        "torch.randn(512, 64)",
        "joined from ",
    ),
    "windows": ("return F.max_pool2d(x, 3, 1, 1)", "torch.randn(2, 3, 8, 8)", "clipped"),
    "a transposition": ("return x.T.contiguous() + 1", "torch.randn(64, 32)", "in tiles, whose axes change places"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_its_text(form: str) -> None:
    forward, inputs, words = FORMS[form]
    init = "self.square = nn.Linear(8, 8)" if "square" in forward else "pass"
    assert words in dumped(source(forward, inputs, init))


GATES = """h = torch.zeros_like(x[:, 0])
        for t in range(8):
            a, b = self.gates(torch.cat([h, x[:, t]], 1)).chunk(2, 1)
            h = torch.sigmoid(a) * torch.tanh(b)
        return h, torch.softmax(x, 1).mT.contiguous()"""


def test_a_pass_leaves_the_program_that_it_is_given_as_it_is() -> None:
    program = lower(graph_of(task(source(GATES, "torch.randn(4, 8, 16)", "self.gates = nn.Linear(32, 32)"))))
    changed = 0
    for run in PASSES:
        before = form_of(program)
        after = run(program)
        assert form_of(program) == before
        changed += form_of(after) != before
        program = after
    assert changed
