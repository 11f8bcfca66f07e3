"""The file of a whole whose parts are other files: the reference's code, theirs, and a `ModelNew` of both."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.agent.parts.choice import Place
from kernelwright.agent.parts.names import NotRenamed, names_of, renamed
from kernelwright.kernelbench.parsing import parsed
from kernelwright.results.templating import template

_INPUTS = ("get_inputs", "get_init_inputs")
# Names that the template has, or needs.
_TAKEN = {
    **dict.fromkeys(("ModelNew", "Model", "PARTS", "tensors_only", "standing_in"), ""),
    "torch": "torch",
}


@dataclass(frozen=True)
class PlacedPart:
    """A file with the `ModelNew` of a part, and the places of that."""

    places: tuple[Place, ...]
    is_plain: bool  # called with tensors by position, and with nothing else
    source: str

    @property
    def name(self) -> str:
        """The first path as the end of a name."""
        return re.sub(r"\W", "_", self.places[0][0])


def assembled(reference: str, parts: Sequence[PlacedPart]) -> tuple[str, dict[str, str]]:
    """Return the file, and why parts had to be left out, by their names.

    Raises NotRenamed if the reference itself cannot be a part of a file.
    """
    taken = dict(_TAKEN)
    if (own := names_of(reference).get("torch", "torch")) != "torch":
        raise NotRenamed(f"its name torch is {own}")
    taken |= names_of(reference)
    whole, futures = _body(reference, _INPUTS)
    placed, files, left = [], [], {}
    for part in parts:
        try:
            own, said = _body(part.source, _INPUTS)
            names = names_of(own)
            new = {
                name: _free(f"{name}_{part.name}", {*taken, *names})
                for name, what in names.items()
                if name in taken and (not what or taken[name] != what)
            }
            text = renamed(own, new)
        except (NotRenamed, SyntaxError, ValueError, RecursionError) as error:
            left[part.name] = str(error)
            continue
        taken |= {new.get(name, name): what for name, what in names.items()}
        futures |= said
        files.append(text)
        placed.append((new["ModelNew"], part))
    text = template("assembled.py", Path(__file__).parent / "templates").render(
        futures=list(futures), whole=whole, files=files, placed=placed
    )
    return text, left


def _free(name: str, taken: set[str]) -> str:
    return next(each for n in range(len(taken) + 1) if (each := f"{name}{n or ''}") not in taken)


def _body(source: str, dropped: Sequence[str]) -> tuple[str, dict[str, None]]:
    """Return the text of a file without some functions, and what it imports from `__future__`.

    Its docstring becomes a comment.
    """
    lines = source.removeprefix("\ufeff").splitlines()
    futures: dict[str, None] = {}
    for position, node in reversed(list(enumerate(parsed(source).body))):
        end = node.end_lineno
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            futures |= dict.fromkeys(alias.name for alias in node.names)
            del lines[node.lineno - 1 : end]
        elif isinstance(node, ast.FunctionDef) and node.name in dropped:
            first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            del lines[first - 1 : end]
        elif position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said = str(node.value.value).strip().splitlines()
            lines[node.lineno - 1 : end] = [f"# {line}".rstrip() for line in said]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).strip() + "\n", futures
