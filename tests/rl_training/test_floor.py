"""Nothing below imports this room, so that everything else works without it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("room", ["kernelbench", "profiling", "results", "agent"])
def test_no_room_below_imports_it(room: str) -> None:
    files = [path for path in (ROOT / room).rglob("*.py") if "rl_training" in path.read_text()]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "rl_training" for name in names), path
