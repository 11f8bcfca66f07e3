"""The templates of prompts, beside `agent.llm`'s own."""

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
        autoescape=False,  # the output is Markdown, not HTML
        keep_trailing_newline=True,
    )


def template(name: str, folder: Path = Path(__file__).parent / "templates") -> Template:
    return _environment(folder).get_template(f"{name}.j2")
