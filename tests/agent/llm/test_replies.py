"""Whatever a reply looks like: its candidate is found, or the model is told what is missing; nothing is executed."""

import json
import textwrap
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.agent.llm.model import ReplyUnusable
from kernelwright.agent.llm.reply.replies import MOST_CHARACTERS, candidate_source

FILE = '''import torch
from torch import nn
from kernelwright import jit

lib = jit.compile_cpp(r"""
extern "C" void twice(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = 2 * x[i];
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
'''
TORCH = """import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return 2 * x
"""
KERNEL = """extern "C" void twice(const float* x, float* y, long n) {
    #pragma omp parallel for
    for (long i = 0; i < n; ++i) y[i] = x[i] + x[i];
}"""


def fenced(text: str, language: str = "python", fence: str = "```") -> str:
    return f"{fence}{language}\n{text}\n{fence}"


REPLIES = {
    "fenced": fenced(FILE),
    "prose around": f"Here is it, 世界:\n\n{fenced(FILE)}\n\nIt uses `twice` and {{braces}}.",
    "no language": fenced(FILE, ""),
    "tildes": fenced(FILE, "py", "~~~"),
    "four backticks": fenced(FILE, fence="````"),
    "never closed": "```python\n" + FILE,
    "not fenced": FILE,
    "not fenced, prose around": f"This is the file.\nIt is fast.\n\n{FILE}\nI hope that helps.\n",
    "windows": fenced(FILE).replace("\n", "\r\n"),
    "a draft first": fenced("class ModelNew:\n    pass") + "\nBetter:\n" + fenced(FILE),
    "broken draft last": fenced(FILE) + "\nor so:\n" + fenced("class ModelNew(:\n  ..."),
    "an example of use behind": fenced(FILE) + "\n" + fenced("y = ModelNew()(torch.rand(3))"),
    "shell and diff beside": fenced("pip install torch", "bash")
    + "\n"
    + fenced(FILE)
    + "\n"
    + fenced("- a\n+ b", "diff"),
    "a shorter final version": fenced(FILE.replace("2 * x[i]", "x[i] + x[i] + 0 * x[i]"))
    + "\n"
    + fenced(FILE),
    "an excerpt behind": fenced(FILE) + "\nIts core:\n" + fenced(FILE[FILE.index("class ModelNew") :]),
    "plain torch behind": fenced(FILE) + "\nWithout kernels:\n" + fenced(TORCH),
    "the reference behind": fenced(FILE) + "\n" + fenced(TORCH.replace("ModelNew", "Model")),
    "a test behind": fenced(FILE)
    + "\n"
    + fenced("import torch\nfrom new import ModelNew\nModelNew()(torch.ones(3))"),
    **{
        f"called {name}": fenced(FILE, name)
        for name in ("cpp", "c++", "cuda", "triton", "ipython3", "Python3")
    },
    "with a title": fenced(FILE, 'python title="new.py"'),
    "with a path": fenced(FILE, "python:new.py"),
    "with braces": fenced(FILE, "{python}"),
    "in a list": "1. This:\n\n" + textwrap.indent(fenced(FILE), "    "),
    "in a list, as an item": "1. ```python\n" + textwrap.indent(FILE, "   ") + "   ```",
    "behind text": f"Code: {fenced(FILE)}",
    "closed behind code": f"```python\n{FILE.rstrip()}```",
    "not closed before the next": f"```python\nx = 1\n{fenced(FILE)}",
    "in tags": f"<answer>\n{FILE}</answer>",
    "in JSON": json.dumps({"plan": "twice", "code": FILE}),
    "in JSON in a fence": fenced(json.dumps({"files": [{"text": fenced(FILE)}]}), "json"),
    "a byte order mark": fenced("\ufeff" + FILE),
    "hard spaces": fenced(FILE.replace("    ", "\u00a0" * 4)),
    "typographic quotes": fenced(FILE.replace('"', "\u201d")),
    "for gpt-oss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"
    + fenced(FILE),
    "as a diff from nothing": fenced(
        "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n" + textwrap.indent(FILE, "+", lambda _: True), "diff"
    ),
}


@pytest.mark.parametrize("name", REPLIES)
def test_the_file_is_found(name: str) -> None:
    assert candidate_source(REPLIES[name]).strip() == FILE.strip()


ENDINGS = {
    "an assignment": "ModelNew = Fast",
    "an assignment in try": "try:\n    ModelNew = Fast\nexcept NameError:\n    pass",
    "a class in if": "if True:\n    class ModelNew(Fast):\n        pass",
    "a factory": "def ModelNew():\n    return Fast()",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_model_new_may_be_any_binding(name: str) -> None:
    source = FILE.replace("ModelNew", "Fast") + "\n\n" + ENDINGS[name] + "\n"
    for reply in (fenced(source), source, f"It is this:\n\n{source}\nI hope that it's fast.\n"):
        assert candidate_source(reply).strip() == source.strip()


def test_a_fence_in_a_docstring_is_a_part_of_it() -> None:
    for inner in ("```", "```python"):
        source = FILE.replace(
            "nn.Module):\n", f'nn.Module):\n    """So:\n\n    {inner}\n    m()\n    ```\n    """\n\n'
        )
        assert candidate_source(f"{fenced(source)}\nIt is fast.").strip() == source.strip()


def test_typographic_characters_in_strings_are_left_alone() -> None:
    source = FILE.replace("class ModelNew", 'NAME = "\u201ctwice\u201d\u00a0it"\n\n\nclass ModelNew')
    assert candidate_source(fenced(source)).strip() == source.strip()


def test_a_file_is_whole_if_it_defines_what_it_uses() -> None:
    """Also by what only the running file would show, and but for annotations, which may name anything."""
    for line in ("from math import *\nprint(pi)", "globals()['late'] = 1\nprint(late)", "def f(x: Tensor) -> Tensor: ...",
                 "print(__file__)", "match 3:\n    case [a, *b]:\n        print(a, b)", "print((n := 3) + n)"):  # fmt: skip
        source = FILE.replace("\n\n\nclass", f"\n{line}\n\n\nclass")
        assert candidate_source(fenced(source)).strip() == source.strip()
    with pytest.raises(ReplyUnusable, match="uses nn, torch, lib without defining or importing"):
        candidate_source(fenced(FILE[FILE.index("class ModelNew") :]))
    with pytest.raises(ReplyUnusable, match="uses SOURCE without"):
        candidate_source(
            f"{fenced(KERNEL, 'cpp')}\n{fenced(FILE.replace('2 * x[i]', 'x[i]').replace('class', 'SOURCE' + chr(10) + 'class'))}",
            FILE,
        )


DRAFT = fenced(FILE.replace("twice", "draft"))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (
            f"<think>\n{DRAFT}\n</think>\n{fenced(FILE.replace('numel())', 'numel()'))}",
            "not valid Python: .* in line 1",
        ),
        (f"let me think\n{DRAFT}\n</think>\nI could not finish.", "no Python file"),
        (f"<think>\n{DRAFT}\nbut wait, this", "no answer after its thought"),
        (f"<think>\n{DRAFT}\n</think>\n", "no answer after its thought"),
        (f"[THINK]{DRAFT}[/THINK]That is it.", "no Python file"),
        (f"<|channel|>analysis<|message|>{DRAFT}", "no answer after its thought"),
        (f"analysis{DRAFT}assistantfinalThat is it.", "no Python file"),
    ],
)
def test_a_draft_in_a_thought_is_no_answer(reply: str, words: str) -> None:
    for parent in (None, FILE):
        with pytest.raises(ReplyUnusable, match=words):
            candidate_source(reply, parent)


def test_python_is_never_put_into_a_kernel() -> None:
    """It would not compile, and the model could not see why."""
    model = FILE.replace("ModelNew", "Model")
    for language in ("python", "cpp", ""):
        with pytest.raises(ReplyUnusable, match="it defines Model: call it ModelNew"):
            candidate_source(fenced(model, language), FILE)
        with pytest.raises(ReplyUnusable, match="not valid Python"):
            candidate_source(fenced(model + "\n(", language), FILE)


def test_a_file_in_pieces_is_put_together() -> None:
    head, tail = FILE.split("\n\n\nclass")
    source = candidate_source(f"First\n{fenced(head)}\nthen\n{fenced('class' + tail)}\n")
    assert "compile_cpp" in source and "class ModelNew" in source


def test_kernels_alone_go_into_the_file_that_the_model_was_shown() -> None:
    for reply in (fenced(KERNEL, "cpp"), f"Only the kernel:\n{fenced(KERNEL, 'c++')}", KERNEL):
        source = candidate_source(reply, FILE)
        assert "x[i] + x[i]" in source and "2 * x[i]" not in source
        assert source.endswith(FILE[FILE.index("class ModelNew") :])
    with pytest.raises(ReplyUnusable, match="whole Python file"):
        candidate_source(fenced(KERNEL, "cpp"))
    with pytest.raises(ReplyUnusable, match="whole file"):
        candidate_source(fenced(KERNEL, "cpp"), "what was said instead of a file")
    with pytest.raises(ReplyUnusable, match="2 kernel sources and the file 1"):
        candidate_source(fenced(KERNEL, "cpp") + "\n" + fenced(KERNEL, "cpp"), FILE)


def test_a_kernel_with_quotes_and_backslashes_survives() -> None:
    kernel = KERNEL + "\n// \"\"\" and \\n and ''' and é"
    source = candidate_source(fenced(kernel, "cpp"), FILE)
    told: dict[str, object] = {}
    exec(compile(source[source.index("jit.compile_cpp(") : source.index("\n\n\nclass")].replace(
        "jit.compile_cpp", "told = str"), "it", "exec"), told)  # fmt: skip
    assert str(told["told"]).strip() == kernel.strip()


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("I cannot\nhelp with that.", "no Python file.*; it says: I cannot help with that."),
        ("I would rather not. " * 20, "ModelNew$"),
        (fenced("import torch\nx = 1"), "no Python file that defines class ModelNew"),
        (fenced("class ModelNew(nn.Module:\n    pass"), "not valid Python.*line 1"),
        (fenced("import torch\nclass ModelNew:\n  def f(self):\n   return (1"), "not valid Python"),
        (fenced("# class ModelNew is what I would write"), "no Python file"),
        ("```\n```", "no Python file"),
    ],
)
def test_what_is_missing_is_said(reply: str, words: str) -> None:
    with pytest.raises(ReplyUnusable, match=words):
        candidate_source(reply)


def test_nothing_of_a_reply_is_executed() -> None:
    source = "raise SystemExit('executed')\nclass ModelNew: pass"
    assert candidate_source(fenced(source)).strip() == source


@pytest.mark.slow
def test_long_replies_take_no_time() -> None:
    started = time.process_time()
    for filling in ("`" * 200_000, "```\n" * 50_000, "import x\n" * 22_000 + "class ModelNew", "{" * 200_000,
                    "class ModelNew\n" * 14_000, "(" * 200_000, fenced("x = " + "[" * 100_000), "<think>" * 30_000,
                    "<<<<<<< SEARCH\n" * 13_000, '```\n"""\n' * 20_000, "x```" * 50_000, "@@\n+a\n-b\n" * 20_000):  # fmt: skip
        with pytest.raises(ReplyUnusable):
            candidate_source(filling)
    assert time.process_time() - started < 20  # of its own, whatever else the machine does
    with pytest.raises(ReplyUnusable, match="characters"):
        candidate_source(fenced(FILE + "#" * MOST_CHARACTERS))
    assert candidate_source("prose " * 30_000 + "\n" + fenced(FILE)).strip() == FILE.strip()


# Text of pieces that mean something here, so that they come together in ways that nobody thought of.
PIECES = st.lists(
    st.sampled_from(
        ["```", "````", "~~~", "python", "diff", "\n", "    ", '"""', "'", "<think>", "</think>", "@@", "+", "-", " ",
         "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "{", "}", '"code":', "import torch", "class ModelNew:", " pass",
         "ModelNew = 1", "lib", '#include "x"', "\ufeff", "\u201d", "<|channel|>final<|message|>", "--- a", "+++ b"]
    )
).map("".join)  # fmt: skip


@settings(deadline=None)
@given(st.text() | PIECES)
def test_any_text_gives_a_file_or_a_reason(text: str) -> None:
    search = f"<<<<<<< SEARCH\n{text}\n=======\n{text}x\n>>>>>>> REPLACE"
    for reply in (text, f"```python\n{text}\n```", text + FILE, f"{text}\n{fenced(FILE)}\n{text}", search,
                  f"```diff\n@@ -1 +1 @@\n{text}\n+{text}\n-{text}\n```", f'{{"code": "{text} ModelNew"}}'):  # fmt: skip
        try:
            assert "ModelNew" in candidate_source(reply, FILE)
        except ReplyUnusable as error:
            assert str(error)
