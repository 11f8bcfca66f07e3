"""Help strings are phrases that can be read alone, for somebody who sees one option and nothing else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from kernelwright import cli

# A phrase that begins so goes on from something that the reader does not see.
GOES_ON = ("That", "Of", "What", "Which", "How", "Whether", "Who")
FEWEST_WORDS = 2  # of a noun phrase


def parameters(group: Any, command: str = "kernelwright") -> Iterator[tuple[str, str]]:
    """Each option and argument of all commands, with its help."""
    for parameter in group.params:
        if parameter.name != "help":
            name = next((word for word in parameter.opts if word.startswith("--")), parameter.name)
            yield f"{command} {name}", parameter.help or ""
    for name, inner in getattr(group, "commands", {}).items():
        yield from parameters(inner, f"{command} {name}")


HELP = dict(parameters(typer.main.get_command(cli.app)))


@pytest.mark.parametrize("name", HELP)
def test_help_can_be_read_alone(name: str) -> None:
    said = re.sub(r" \[(default: .*|required)\]$", "", HELP[name])
    words = said.split()
    assert len(words) >= FEWEST_WORDS, f"{said!r} says too little"
    assert words[0][0].isupper(), f"{said!r} does not begin with a capital letter"
    assert words[0] not in GOES_ON, f"{said!r} begins with {words[0]}: begin with a verb or a noun"
    assert said.endswith("."), f"{said!r} does not end with a full stop"
