"""Searches: what to try next, given all that was tried. One file each; `base.py` has what they share.

A search has no state. What it asks for follows from the history alone, so a run that was killed in the middle
of several requests made at a time goes on with those that are left. To add one: write its file, with its
options, and name both in `registry.py`.
"""

from kernelwright.agent.search.agent import Agent
from kernelwright.agent.search.base import (
    Request,
    Search,
    Stop,
    StopRules,
    Team,
    best_of,
    lower_bound,
    needs_a_gpu,
    wrong_ceiling,
)
from kernelwright.agent.search.beam import Beam
from kernelwright.agent.search.best_of_n import BestOfN
from kernelwright.agent.search.evolve import Evolve
from kernelwright.agent.search.exhaustive import Exhaustive
from kernelwright.agent.search.refine import Refine
from kernelwright.agent.search.rounds import rounds_of

__all__ = [
    "Agent",
    "Beam",
    "BestOfN",
    "Evolve",
    "Exhaustive",
    "Refine",
    "Request",
    "Search",
    "Stop",
    "StopRules",
    "Team",
    "best_of",
    "lower_bound",
    "needs_a_gpu",
    "rounds_of",
    "wrong_ceiling",
]
