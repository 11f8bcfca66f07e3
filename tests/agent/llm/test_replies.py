"""Whatever a reply looks like: its candidate is found, or the model is told what is missing; nothing is executed."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.agent.llm.model import ReplyUnusable
from kernelwright.agent.llm.replies import MOST_CHARACTERS, candidate_source

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
}


@pytest.mark.parametrize("name", REPLIES)
def test_the_file_is_found(name: str) -> None:
    assert candidate_source(REPLIES[name]).strip() == FILE.strip()


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
        ("I cannot help with that.", "no Python file"),
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


def test_long_replies_take_no_time() -> None:
    started = time.perf_counter()
    for filling in ("`" * 200_000, "```\n" * 50_000, "import x\n" * 22_000 + "class ModelNew", "{" * 200_000,
                    "class ModelNew\n" * 14_000, "(" * 200_000, fenced("x = " + "[" * 100_000)):  # fmt: skip
        with pytest.raises(ReplyUnusable):
            candidate_source(filling)
    assert time.perf_counter() - started < 20
    with pytest.raises(ReplyUnusable, match="characters"):
        candidate_source(fenced(FILE + "#" * MOST_CHARACTERS))
    assert candidate_source("prose " * 30_000 + "\n" + fenced(FILE)).strip() == FILE.strip()


@given(st.text())
def test_any_text_gives_a_file_or_a_reason(text: str) -> None:
    for reply in (text, f"```python\n{text}\n```", text + FILE, f"{text}\n{fenced(FILE)}\n{text}"):
        try:
            assert "ModelNew" in candidate_source(reply, FILE)
        except ReplyUnusable as error:
            assert str(error)
