"""Packages that kernelwright needs, looked for where it is to run: in milliseconds, and without pip."""

import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent.relative_to(ROOT)
TESTS = ("pytest>=8.3", "pytest-timeout>=2.3")  # of stage 2
HOW = (
    f"where there is a network: pip download --no-deps --only-binary=:all: -d wheels -r {HERE}/requirements.txt "
    "(with --python-version of that machine); there: pip install --no-index --no-deps --target site wheels/*.whl, "
    "and PYTHONPATH=site"
)


def needed(extra: str = "") -> list[str]:
    """Return what pyproject.toml asks for: the dependencies, or those of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"][extra] if extra else project["dependencies"]


def missing(wanted: Sequence[str]) -> list[str]:
    """Return the requirements, also those of requirements, that are not met here, with who asks for them."""
    return sorted(set(_unmet(wanted, "", "", set())))


def _unmet(wanted: Sequence[str], extra: str, of: str, seen: set[str]) -> Iterator[str]:
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        yield "packaging"
        return
    for text in wanted:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        said = f"{requirement.name}{requirement.specifier}" + (f" (of {of})" if of else "")
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield said
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            yield f"{said}, not {found}"
        elif (key := f"{requirement.name}{sorted(requirement.extras)}") not in seen:
            seen.add(key)
            for inner in requirement.extras or {""}:
                yield from _unmet(requires(requirement.name) or (), inner, requirement.name, seen)
