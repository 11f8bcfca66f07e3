"""The searches that `--search` can name, and the options of all of them."""

from typing import Annotated, Self

import typer

from kernelwright.agent.search.agent import Agent, AgentOptions
from kernelwright.agent.search.base import RegisteredSearch, Search, Team
from kernelwright.agent.search.beam import Beam, BeamOptions
from kernelwright.agent.search.best_of_n import BestOfN
from kernelwright.agent.search.evolve import Evolve, EvolveOptions
from kernelwright.agent.search.exhaustive import Exhaustive
from kernelwright.agent.search.refine import Refine, RefineOptions
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.options import OneOf, Section, alternatives

_SEARCHES: tuple[type[RegisteredSearch], ...] = (Refine, Exhaustive, BestOfN, Beam, Evolve, Agent)
_BY_NAME = {kind.name: kind for kind in _SEARCHES}


class _Choice(Section):
    search: Annotated[str, OneOf(tuple(_BY_NAME)), typer.Option(help="Search method.")] = "refine"


class SearchOptions(AgentOptions, EvolveOptions, BeamOptions, RefineOptions, _Choice):
    """Options of all searches; each reads its own."""

    def for_coder(self, coder: str) -> Self:
        """Return these options with the only search there is for a coder, unless one is named."""
        named = "search" in self.model_fields_set or coder != "command"
        return self if named else self.model_copy(update={"search": Agent.name})

    def begin(self, team: Team) -> Search:
        return _BY_NAME[self.search].begin(self, team)

    def check(self, coder: str, languages: tuple[str, ...], timed: bool) -> None:
        """Raise UsageError for what this search cannot do."""
        chosen = _BY_NAME[self.search]
        known = [kind.name for kind in _SEARCHES if coder in kind.works_with]
        if coder not in chosen.works_with:
            raise UsageError(
                f"--search {self.search} does not work with --coder {coder}", f"choose {alternatives(known)}"
            )
        if len(languages) > 1 and not chosen.several_languages:
            raise UsageError(
                f"--search {self.search} has kernels written in one language",
                "give one --language, or --search evolve",
            )
        chosen.check(self, coder, timed)
