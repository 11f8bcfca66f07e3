"""Runs are made by the factory of tests/results."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "results"))
