"""Names at the top of a file get others, wherever they are meant, and nowhere else."""

import ast

import pytest

from kernelwright.agent.parts.names import NotRenamed, names_of, renamed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("n = 1  # of n\nm = n + 1\n", "n_a = 1  # of n\nm = n_a + 1\n"),
        ("def n(x): return n(x, n=2)\n", "def n_a(x): return n_a(x, n=2)\n"),
        ("n = 1\ndef f(n=n): return n\n", "n_a = 1\ndef f(n=n_a): return n\n"),
        ("n = 1\ndef f():\n    n = 2\n    return n\n", "n_a = 1\ndef f():\n    n = 2\n    return n\n"),
        ("n = 1\ndef f():\n    global n\n    n = 2\n", "n_a = 1\ndef f():\n    global n_a\n    n_a = 2\n"),
        ("n = 1\ndef f():\n    return lambda n: n\n", "n_a = 1\ndef f():\n    return lambda n: n\n"),
        ("n = [1]\nm = [n for n in n]\n", "n_a = [1]\nm = [n for n in n_a]\n"),
        ("n = 1\nclass C:\n    def n(self): return n\n", "n_a = 1\nclass C:\n    def n(self): return n_a\n"),
        ("@n\ndef f(x: n) -> n: return x.n\ndef n(f): return f\n",
         "@n_a\ndef f(x: n_a) -> n_a: return x.n\ndef n_a(f): return f\n"),
        ("import numpy as n\nm = n.n\n", "import numpy as n_a\nm = n_a.n\n"),
        ("from math import n\n", "from math import n as n_a\n"),
        ('n = 1\ns = f"{n} n {m:{n}}"\n', 'n_a = 1\ns = f"{n_a} n {m:{n_a}}"\n'),
        ('n = 1\ns = f"""\nint n = {n}; {{ n }}\n"""\n', 'n_a = 1\ns = f"""\nint n = {n_a}; {{ n }}\n"""\n'),
        ('n = r"""void n() {}"""  # C++\nx = lib.n("n")\nprint(n)\n',
         'n_a = r"""void n() {}"""  # C++\nx = lib.n("n")\nprint(n_a)\n'),
        ("é = n = 1; n\n", "é = n_a = 1; n_a\n"),
        ("try:\n    n = 1\nexcept ValueError as n:\n    pass\n",
         "try:\n    n_a = 1\nexcept ValueError as n_a:\n    pass\n"),
        ("\ufeffn = 1\n", "n_a = 1\n"),
    ],
)  # fmt: skip
def test_a_name_is_changed_where_it_is_meant(before: str, after: str) -> None:
    assert "n" in names_of(before)
    assert renamed(before, {"n": "n_a"}) == after


def test_what_the_text_does_not_show_is_written_from_the_tree() -> None:
    """A line on which the first such word is another one's name."""
    found = renamed("x.n = lambda n: n; n = 1\ndef f(n): n\nclass n: x = n  # lost\n", {"n": "n_a"})
    assert ast.unparse(ast.parse(found)) == (
        "x.n = lambda n: n\nn_a = 1\n\ndef f(n):\n    n\n\nclass n_a:\n    x = n_a"
    )


def test_imports_are_known_as_what_they_are() -> None:
    source = "import torch.nn\nimport torch\nfrom torch import nn\nimport numpy as np\nx = 1\nnp = None\n"
    assert names_of(source) == {"torch": "torch", "nn": "torch: nn", "np": "", "x": ""}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("from math import *\n", r"imports \*"),
        ("x = globals()\n", "globals"),
        ("exec('x = 1')\n", "exec"),
        ("match x:\n    case y: pass\n", "match"),
    ],
)
def test_names_that_cannot_be_seen_are_refused(source: str, why: str) -> None:
    with pytest.raises(NotRenamed, match=why):
        names_of(source)


def test_a_class_with_a_name_of_its_own_that_the_file_has_too_is_refused() -> None:
    with pytest.raises(NotRenamed, match="the class C has a name of its own, n, too"):
        renamed("n = 1\nclass C:\n    n = n\n", {"n": "n_a"})
