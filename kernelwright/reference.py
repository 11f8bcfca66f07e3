"""Reference of all commands and their options: `python -m kernelwright.reference > docs/options.md`."""

from collections.abc import Iterator
from typing import Any

import typer.main

from kernelwright import cli

_INTRODUCTION = """# Options

Made by `python -m kernelwright.reference > docs/options.md` from what the commands themselves declare.

A command with `--config FILE` reads its options from a TOML or YAML file, too: each panel below is a table
there, each option without its dashes a key. The command line goes before the file.

```toml
[tasks]
tasks = ["builtin:level1/softmax"]
set = ["rows=4096"]

[search]
rounds = 8

[budget]
max-minutes = 30
```
"""


def reference() -> str:
    """Return the text of docs/options.md."""
    parts = [_INTRODUCTION]
    for name, command in _commands(typer.main.get_command(cli.app)):
        paragraph = " ".join((command.help or "").split("\n\n")[0].split())
        parts.append(f"## kernelwright {name}\n\n{paragraph}\n")
        panels: dict[str, list[str]] = {}
        for parameter in command.params:
            if parameter.name != "help":
                panel = getattr(parameter, "rich_help_panel", None) or (
                    "Options" if parameter.param_type_name == "option" else "Arguments"
                )
                panels.setdefault(panel, []).append(_row(parameter))
        for panel, rows in panels.items():
            parts.append("\n".join([f"| {panel} | |", "|:--|:--|", *rows]) + "\n")
    return "\n".join(parts)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all commands with their names, those of groups with the group's name before them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _row(parameter: Any) -> str:
    name = " / ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        name = parameter.metavar or str(parameter.name).upper()
    elif parameter.metavar:
        name += f" {parameter.metavar}"
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    default = parameter.default
    shown = parameter.show_default
    if isinstance(shown, str):
        text += f" [default: {shown}]"
    elif shown and default not in (None, False, ...) and default != [] and not parameter.required:
        text += f" [default: {getattr(default, 'value', default)}]"
    return f"| `{name}` | {text} |".replace("|`", "| `")


if __name__ == "__main__":
    print(reference(), end="")
