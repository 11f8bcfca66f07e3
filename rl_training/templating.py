"""The templates of prompts, beside `kernelwright.agent.llm`'s own."""

from pathlib import Path

from jinja2 import Template

from kernelwright.results import templating


def template(name: str, folder: Path = Path(__file__).parent / "templates") -> Template:
    return templating.template(name, folder)
