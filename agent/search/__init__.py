"""Searches: what to try next, given all that was tried. One file each; `base.py` has what they share.

A search has no state. What it asks for follows from the history alone, so a run that was killed in the middle
of several requests made at a time goes on with those that are left.
"""

from agent.search.base import Request, Search, Stop, StopRules, best_of, lower_bound
from agent.search.beam import Beam
from agent.search.best_of_n import BestOfN
from agent.search.evolve import Evolve
from agent.search.exhaustive import Exhaustive
from agent.search.refine import Refine

__all__ = [
    "Beam",
    "BestOfN",
    "Evolve",
    "Exhaustive",
    "Refine",
    "Request",
    "Search",
    "Stop",
    "StopRules",
    "best_of",
    "lower_bound",
]
