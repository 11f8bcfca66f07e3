"""Small tasks of the suite in eight and four bits, and what holds a kernel of one to the reference."""

import itertools
from pathlib import Path

import torch

from kernelwright.kernelbench.records import Candidate
from kernelwright.kernelbench.sources import resolve
from tests.helpers.builtin.proving import models

SMALLER = {"tokens": "33", "features": "256", "rows": "128", "columns": "256", "places": "64"}
SMALLER |= {"in_features": "256", "out_features": "128", "heads": "2"}


def small(name: str) -> str:
    """A task of the suite at a size for tests."""
    (task,) = resolve([f"builtin:lowprec/{name}"])
    lines = task.source.splitlines(keepends=True)
    found = [(line, line.partition(" = ")[0]) for line in lines]
    return "".join(f"{name} = {SMALLER[name]}\n" if name in SMALLER else line for line, name in found)


def hold(text: str, candidate: Candidate, folder: Path) -> None:
    """Raises AssertionError where more than one element in a thousand, or a float by 1e-5, is another."""
    model, new, inputs = models(text, candidate, folder)
    with torch.no_grad():
        wanted, found = (
            made if isinstance(made, tuple) else (made,) for made in (model(*inputs), new(*inputs))
        )
    for theirs, ours in itertools.zip_longest(wanted, found):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        theirs, ours = theirs.float(), ours.float()
        same = torch.isclose(
            ours, theirs, rtol=1e-5 if theirs.dtype.itemsize > 1 else 0, atol=0, equal_nan=True
        )
        assert float((~same).float().mean()) <= 1e-3
