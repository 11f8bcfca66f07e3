"""Tests stand alone: what several of them need lies in tests/helpers."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "tests").rglob("*.py"))
KEPT = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "pyproject.toml",
    "agent",
    "benchmarks",
    "docs",
    "kernelbench",
    "kernelwright",
    "profiling",
    "results",
    "rl_training",
    "tests",
}
TESTS = [path for path in FILES if path.name.startswith(("test_", "conftest"))]


def test_no_test_is_imported() -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in TESTS]
    modules += {path.stem for path in TESTS}  # as they are called where their folder is on Python's path
    for path in FILES:
        for name in imported(path):
            found = [module for module in modules if f"{name}.".startswith(f"{module}.")]
            assert not found, f"{path} imports {found[0]}: move what they share to tests/helpers"


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports anywhere, some with a name in them."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                within = package[: len(package) - level + 1] if level else ()
                base = ".".join([*within, *filter(None, [module])])
                yield from (f"{base}.{alias.name}" for alias in names)


def test_nothing_lies_about() -> None:
    """Nothing that a task or a command writes into its working directory is committed."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("no git checkout")
    found = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    assert found <= KEPT, f"{sorted(found - KEPT)}: remove it, or name it here"


def test_helpers_hold_no_tests() -> None:
    """Tests in helper modules, which pytest would not find."""
    for path in (ROOT / "tests" / "helpers").rglob("*.py"):
        functions = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
        ]
        assert not [function.name for function in functions if function.name.startswith("test_")], path
