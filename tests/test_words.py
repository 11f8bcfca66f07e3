"""Docstrings of the product begin with a noun or a verb, so that each can be read alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("agent", "benchmarks", "kernelbench", "kernelwright", "profiling", "results", "rl_training")
# Candidates, tasks and measured files, whose texts are data.
DATA = (
    "kernelbench/tasks",
    "kernelbench/redteam/cheats",
    "kernelbench/redteam/honest",
    "kernelbench/redteam/references",
    "results/published",
    "agent/llm/prompts/examples",
)
FRAGMENTS = {"As", "For", "How", "Of", "That", "What", "Where", "Whether", "Which", "Who"}


def fragments(file: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(file.read_text())):
        first = (ast.get_docstring(node) or "").split() if isinstance(node, kinds) else []
        if first and first[0] in FRAGMENTS:
            yield f"{file.relative_to(ROOT)}: {' '.join(first[:6])}"


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_stand_alone(room: str) -> None:
    files = [file for file in (ROOT / room).rglob("*.py") if not str(file.relative_to(ROOT)).startswith(DATA)]
    assert [words for file in files for words in fragments(file)] == []
