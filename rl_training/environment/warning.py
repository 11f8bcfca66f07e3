"""Warnings about caught files in a policy's prompts."""

from collections.abc import Sequence

from kernelwright.rl_training.rewards.hacks import Case
from kernelwright.rl_training.templating import template

_MOST_CHARACTERS = 2000  # of a case's code, and of its reason


def warning(cases: Sequence[Case]) -> str:
    """Return a section of a prompt about these cases."""
    return template("hacks.md").render(cases=cases, most=_MOST_CHARACTERS).strip()
