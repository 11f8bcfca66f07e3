"""Definitions of modules, carried over into one file."""

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources.formats.carrying import carried

SOURCE = '''"""What it is."""
from __future__ import annotations
import math, os
from torch import nn as modules, ones
from tools import helper as aid, Kept

LIMIT = 3; OTHER = 4
torch.backends.flag = True


# Above it.
@decorated
def first(x):
    return second(x) + LIMIT


def second(x):
    return aid(x, math.pi, modules)


def third():
    return os, OTHER


if __name__ == "__main__":
    third()
'''
TOOLS = "import os\nfrom deep import BASE\n\ndef helper(*x):\n    return BASE\n\nclass Kept:\n    pass\n"


def test_only_what_the_roots_need_is_carried() -> None:
    code = carried(SOURCE, "main", ["first"], {"tools": TOOLS, "deep": "BASE = 1\nREST = 2\n"})
    assert code.imports == (
        "from __future__ import annotations",
        "import math",
        "from torch import nn as modules",
    )
    assert code.code == (
        "BASE = 1\n\n\ndef helper(*x):\n    return BASE\n\n\naid = helper\nLIMIT = 3\ntorch.backends.flag = True\n\n\n"
        "# Above it.\n@decorated\ndef first(x):\n    return second(x) + LIMIT\n\n\n"
        "def second(x):\n    return aid(x, math.pi, modules)"
    )


def test_all_of_it_is_carried_without_roots() -> None:
    code = carried(SOURCE, "main", None, {"tools": TOOLS, "deep": "BASE = 1\n"})
    assert "def third" in code.code and "import os" in code.imports and "__main__" not in code.code
    assert "class Kept" not in code.code  # which is imported and not used


def test_star_imports_are_followed() -> None:
    code = carried(
        "from tools import *\nfrom math import *\n\ndef f():\n    return helper, pi\n",
        "main",
        ["f"],
        {"tools": TOOLS.replace("from deep import BASE", "BASE = 2")},
    )
    assert "BASE = 2" in code.code and code.imports == ("from math import *",)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import tools\n\ndef f():\n    return tools.helper()\n",
            r"main imports tools as a whole — import names",
        ),
        (
            "from tools import gone\n\ndef f():\n    return gone\n",
            r"main imports gone from tools, which has no such",
        ),
        (
            "from tools import helper\n\nBASE = 3\n\ndef f():\n    return helper, BASE\n",
            r"both define BASE — rename",
        ),
    ],
)
def test_what_cannot_be_carried_is_refused(source: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        carried(source, "main", ["f"], {"tools": TOOLS, "deep": "BASE = 1\n"})
