"""Docstrings of the product begin with a noun or a verb, so that each can be read alone; a name is one class."""

import ast
from collections import Counter
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
    "benchmarks/checks/kernels",
)
FRAGMENTS = {"As", "For", "How", "Of", "That", "What", "Where", "Whether", "Which", "Who"}


def fragments(file: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(file.read_text())):
        first = (ast.get_docstring(node) or "").split() if isinstance(node, kinds) else []
        if first and first[0] in FRAGMENTS:
            yield f"{file.relative_to(ROOT)}: {' '.join(first[:6])}"


def files_of(room: str) -> list[Path]:
    return [file for file in (ROOT / room).rglob("*.py") if not str(file.relative_to(ROOT)).startswith(DATA)]


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_stand_alone(room: str) -> None:
    assert [words for file in files_of(room) for words in fragments(file)] == []


def test_public_classes_have_names_of_their_own() -> None:
    body = [node for room in ROOMS for file in files_of(room) for node in ast.parse(file.read_text()).body]
    counts = Counter(node.name for node in body if isinstance(node, ast.ClassDef))
    assert [name for name, count in counts.items() if count > 1 and not name.startswith("_")] == []
