"""Imports between rooms point down, and no modules import each other in a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx

ROOT = Path(__file__).parents[1]
ROOMS = ("kernelbench", "profiling", "results", "agent", "rl_training")  # the ground floor first
DATA = ("kernelbench/tasks", "kernelbench/redteam", "results/published", "agent/llm/prompts")


def modules() -> dict[str, Path]:
    """Files of the product by dotted name, without tasks, exercises and measured files."""
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            name = path.relative_to(ROOT)
            if not str(name).startswith(DATA):
                found[".".join(("kernelwright", *name.with_suffix("").parts)).removesuffix(".__init__")] = (
                    path
                )
    return found


def imports() -> Iterator[tuple[str, str]]:
    """Pairs of a module and one that it imports, inside functions too."""
    known = modules()
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((name, alias.name) for alias in node.names if alias.name in known)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    target = inner if inner in known else node.module
                    if target in known:
                        yield name, target


def test_rooms_import_only_those_below() -> None:
    floor = {room: number for number, room in enumerate(ROOMS)}
    up = [pair for pair in imports() if floor[pair[0].split(".")[1]] < floor[pair[1].split(".")[1]]]
    assert not up


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = networkx.DiGraph(imports())
    assert [
        sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1
    ] == []
