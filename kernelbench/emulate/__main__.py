"""Survey of CUDA sources that the emulator rejects for their text: nothing is built or run.

    python -m kernelwright.kernelbench.emulate FOLDER

FOLDER holds .cu and .cuh files, and Python files and .json or .jsonl records with such files' text in their
strings, as published sets of kernels do. Each source counts once; rejected ones are listed with the reason.
"""

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kernelwright.kernelbench.emulate.findings import Unsupported
from kernelwright.kernelbench.emulate.translation import global_functions, translate
from kernelwright.kernelbench.parsing import parsed

_GLOBAL = "__global__"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernelwright.kernelbench.emulate", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    found: dict[str, str] = {}  # where a source was found first
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        for source in sources(path):
            if next(global_functions(source), None) is not None:  # else it is a text about kernels
                found.setdefault(source, str(path.relative_to(folder)))
    refused: Counter[str] = Counter()
    for source, where in found.items():
        try:
            translate(source, (), host=True)
        except Unsupported as error:
            refused[error.construct] += 1
            print(f"{where}: {error}")
    share = refused.total() / max(1, len(found))
    print(f"{refused.total()} of {len(found)} sources are rejected ({share:.2%})")
    for construct, count in refused.most_common():
        print(f"{count:6}  {construct}")


def sources(path: Path) -> Iterator[str]:
    """Yield the CUDA sources in a file."""
    text = path.read_text(errors="replace")
    if _GLOBAL not in text:
        return
    if path.suffix in (".cu", ".cuh"):
        yield text
    elif path.suffix == ".json" and (record := _record(text)) is not None:
        yield from _in_record(record)
    elif path.suffix in (".json", ".jsonl"):
        for line in text.splitlines():
            yield from _in_record(_record(line))
    elif path.suffix in (".py", ".txt"):
        yield from _in_python(text)


def _record(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _in_record(record: object) -> Iterator[str]:
    if isinstance(record, str) and _GLOBAL in record:
        yield from _in_python(record)
    elif isinstance(record, dict | list):
        for each in record.values() if isinstance(record, dict) else record:
            yield from _in_record(each)


def _in_python(text: str) -> Iterator[str]:
    """Yield the strings of a Python file except docstrings; text that is not Python is a source itself."""
    try:
        nodes = list(ast.walk(parsed(text)))
    except (SyntaxError, ValueError, RecursionError):
        yield text
        return
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        value = node.value if isinstance(node, ast.Constant) and id(node) not in said else None
        if isinstance(value, str) and _GLOBAL in value:
            yield value


if __name__ == "__main__":
    main()
