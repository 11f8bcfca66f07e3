"""Changes of the file that a model was shown are made where it means them, or it is told why they cannot be."""

import pytest

from kernelwright.agent.llm.model import ReplyUnusable
from kernelwright.agent.llm.reply.replies import candidate_source

PARENT = '''import torch
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
LOOP = "    for (long i = 0; i < n; ++i) y[i] = 2 * x[i];"
FASTER = "    #pragma omp parallel for simd\n    for (long i = 0; i < n; ++i) y[i] = x[i] + x[i];"
EXPECTED = PARENT.replace(LOOP, FASTER)


def block(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def hunk(old: str, new: str, header: str = "@@ -7,1 +7,2 @@") -> str:
    lines = [*(f"-{line}" for line in old.split("\n")), *(f"+{line}" for line in new.split("\n"))]
    return "\n".join([header, *lines])


DIFF = f"--- a/new.py\n+++ b/new.py\n{hunk(LOOP, FASTER)}\n"
REPLIES = {
    "a search/replace block": f"I use all cores.\n\n{block(LOOP, FASTER)}\nThat is all.",
    "in a fence": f"```python\n{block(LOOP, FASTER)}```",
    "with a path": f"new.py\n```\n{block(LOOP, FASTER)}```",
    "of other marks": f"------- SEARCH\n{LOOP}\n=======\n{FASTER}\n+++++++ REPLACE",
    "without indentation": block(LOOP.strip(), "\n".join(line[4:] for line in FASTER.split("\n"))),
    "with other spaces": block(LOOP.replace(" = ", "=") + "   ", FASTER),
    "blank lines around": block(f"\n{LOOP}\n", f"\n{FASTER}\n"),
    "a unified diff": f"```diff\n{DIFF}```",
    "a diff in another fence": f"```python\n{DIFF}```",
    "a diff without a fence": f"This:\n\n{DIFF}\nIt uses all cores.",
    "wrong line numbers": f"```diff\n{hunk(LOOP, FASTER, '@@ -99,7 +120,8 @@ void twice(')}\n```",
    "no hunk header": f"```diff\n{hunk(LOOP, FASTER).partition(chr(10))[2]}\n```",
    "context": "```diff\n@@\n extern \"C\" void twice(const float* x, float* y, long n) {\n"
    f"{hunk(LOOP, FASTER).partition(chr(10))[2]}\n }}\n```",
    "a patch": f"*** Begin Patch\n*** Update File: new.py\n{hunk(LOOP, FASTER, '@@ twice')}\n*** End Patch",
    "two blocks": block(LOOP, LOOP.replace("2 * x[i]", "x[i] + x[i]"))
    + block(LOOP.replace("2 * x[i]", "x[i] + x[i]"), FASTER),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLIES)
def test_the_change_is_made(name: str) -> None:
    assert candidate_source(REPLIES[name], PARENT) == EXPECTED


def test_a_part_of_a_line_is_found() -> None:
    assert candidate_source(block("2 * x[i]", "x[i] + x[i]"), PARENT) == PARENT.replace("2 * x", "x[i] + x")
    source = candidate_source(block("y[i] = 2 * x[i];", "#pragma GCC unroll 4\ny[i] = 0;"), PARENT)
    assert "++i) \n#pragma GCC unroll 4\ny[i] = 0;" in source  # a directive begins a line


def test_lines_are_deleted_and_inserted() -> None:
    assert "y = torch" not in candidate_source(block("        y = torch.empty_like(x)", ""), PARENT)
    diff = "```diff\n@@\n import torch\n+import math\n from torch import nn\n```"
    assert candidate_source(diff, PARENT).startswith("import torch\nimport math\nfrom torch import nn\n")


def test_the_whole_file_counts_if_the_reply_has_both() -> None:
    whole = PARENT.replace("2 * x[i]", "x[i] * 2")
    assert candidate_source(f"{block(LOOP, FASTER)}\nSo:\n```python\n{whole}```", PARENT) == whole


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (block("    y[i] = 3 * x[i];", "z"), "SEARCH block 1 does not fit: .*'y.i. = 3 . x.i.;'; copy them"),
        (block("x", "z"), "SEARCH block 1 fits in more than one place .line 6.: show more lines"),
        (block("", "z"), "SEARCH block 1 shows no line of the file"),
        (block(LOOP, FASTER) + block("nowhere", "z"), "SEARCH block 2 does not fit"),
        (block("nowhere", "z") + block("not", "z"), "block 1 does not fit.*block 2 does not fit"),
        (f"<<<<<<< SEARCH\n{LOOP}\n", "SEARCH block 1 is incomplete: it has no line ======="),
        (f"<<<<<<< SEARCH\n{LOOP}\n=======\n{FASTER}", "incomplete: it has no line >>>>>>> REPLACE"),
        ("```diff\n@@ -1 +1 @@\n-nowhere\n+z\n```", "hunk 1 does not fit"),
        ("```diff\n@@ -1 +1 @@\n+z\n```", "hunk 1 shows no line of the file"),
        (
            block("        return y", "        return (y"),
            "the changed file is not valid Python: .* in line 16",
        ),
        (block("class ModelNew(nn.Module):", "class Other(nn.Module):"), "does not define ModelNew any more"),
    ],
)
def test_a_change_that_cannot_be_made_is_explained(reply: str, words: str) -> None:
    with pytest.raises(ReplyUnusable, match=words):
        candidate_source(reply, PARENT)


def test_there_may_be_no_file_to_change() -> None:
    for reply in (block(LOOP, FASTER), f"```diff\n{DIFF}```"):
        with pytest.raises(ReplyUnusable, match="none yet: give the whole Python file"):
            candidate_source(reply)


def test_a_diff_beside_a_broken_file_is_not_applied_in_its_place() -> None:
    broken = PARENT.replace("x.numel())", "x.numel()")
    with pytest.raises(ReplyUnusable, match="not valid Python"):
        candidate_source(f"```python\n{broken}```\nThe change:\n```diff\n{DIFF}```", PARENT)
