"""Rendering of text templates: Markdown, Python, TOML. Not HTML, whose values must be escaped."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


@cache
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )


def template(name: str, folder: Path) -> Template:
    """Return the template `folder/name.j2`."""
    return _environment(folder).get_template(f"{name}.j2")
