"""Documents can be read and trusted: lines are short, links lead somewhere, and commands parse."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kernelwright import cli

ROOT = Path(__file__).parent.parent
WIDTH = 110  # characters
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
HISTORY = ("LOG.md", "CHANGELOG.md", "2026-W")  # commands there are those of their day
CURRENT = [page for page in PAGES if not page.name.startswith(HISTORY)]
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Options of other programs that the documents name.
FOREIGN = {
    "--agent_func_path", "--env.retries", "--remote_rm_url", "--rm-type", "--rm-url",  # of other trainers
    "--continuous-batching", "--enable-auto-tool-choice", "--gpus", "--import-mode", "--lora-modules", "--no-build-isolation", "--override.imports", "--pyargs",
    "--python-version",
    "--query-metrics", "--scope", "--tool-call-parser", "--training.mixed_precision_param", "--user",
}  # fmt: skip


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_are_short_but_for_tables(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), 1)
    long = [n for n, line in lines if len(line) > WIDTH and not line.lstrip().startswith("|")]
    assert not long, f"{name(page)}: lines {long} have more than {WIDTH} characters"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", FENCE.sub("", page.read_text()))):
        path, _, heading = target.partition("#")
        if "://" in target:
            continue
        linked = page.parent / path if path else page
        assert linked.exists(), f"{name(page)} links {target}"
        if heading:
            assert heading in anchors(linked), f"{name(page)} links {target}: no such heading"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_for_a_reader_in_a_hurry() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    for paragraph in re.split(r"\n\n|\n(?=- )", FENCE.sub("", text)):
        if not paragraph.startswith(("|", "    ")):
            assert len(paragraph.splitlines()) <= 3, paragraph


def commands(page: Path) -> Iterator[str]:
    """Each command line of kernelwright, in blocks of code, where a backslash continues it, and in lines of text."""
    text = page.read_text().replace("\\\n", " ")
    blocks = FENCE.findall(text) + re.findall(r"^ {4}.*$", text, re.MULTILINE)
    for line in "\n".join(blocks).splitlines():
        if line.strip().startswith("kernelwright "):
            yield line.strip()
    for code in CODE.findall(FENCE.sub("", text)):
        if code.startswith("kernelwright "):
            yield " ".join(code.split())


@pytest.mark.parametrize("page", CURRENT, ids=name)
def test_commands_parse(page: Path) -> None:
    for line in commands(page):
        parse(shlex.split(line, comments=True)[1:], line)


def parse(words: list[str], line: str) -> None:
    """Raises a usage error where a command or an option does not exist, or has too many arguments."""
    command = tree()
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-") or words[0] in ("COMMAND", "…", "..."):
            return
        assert words[0] in command.commands, f"{line}: no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    words = [word for word in words if word not in ("…", "...")]
    context = command.context_class(command, info_name=command.name)
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    assert not rest, f"{line}: {rest} are too many"


@pytest.mark.parametrize("page", CURRENT, ids=name)
def test_options_exist(page: Path) -> None:
    """Options in the text and in its tables that stand alone, of whichever command."""
    for code in CODE.findall(FENCE.sub("", page.read_text())):
        for option in re.findall(r"(?<!\S)--[a-z][\w.-]*", code):
            assert option in options() | FOREIGN | {"--help"}, f"{name(page)}: {option}"


@cache
def tree() -> Any:
    return typer.main.get_command(cli.app)


@cache
def options() -> frozenset[str]:
    def of(command: Any) -> Iterator[str]:
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)
        for inner in getattr(command, "commands", {}).values():
            yield from of(inner)

    return frozenset(of(tree()))
