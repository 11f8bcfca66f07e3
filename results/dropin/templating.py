"""Templates of packages and of tasks."""

from functools import partial
from pathlib import Path

from kernelwright.results.templating import template as template_in

template = partial(template_in, folder=Path(__file__).parent / "templates")
