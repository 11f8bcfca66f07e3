"""A scheme: the terms of a reward, read from a TOML or JSON file.

    decoy_share = 0.05

    [[terms]]
    term = "correct"
    weight = 0.3

    [[terms]]
    term = "speedup"
    form = "clipped"
    most = 3.0

`SCHEMES` has the published ones by name.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field, NonNegativeFloat, ValidationError, field_validator

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.functions import hash_of, is_function
from kernelwright.rl_training.outcome import DECOY_SHARE
from kernelwright.rl_training.rewards.returns import discounted
from kernelwright.rl_training.rewards.reward_input import RewardInput
from kernelwright.rl_training.rewards.terms import (
    Correct,
    CoverageTerm,
    Custom,
    Milestones,
    SpeedupTerm,
    Term,
)
from kernelwright.rl_training.trajectory import RewardTerm


class Reward(Record):
    """Reward of a turn. None: nothing is known of the candidate, so nothing is to be learned."""

    value: float | None
    terms: dict[str, RewardTerm] = Field(default_factory=dict)


class Scheme(Record):
    """Scheme of a reward. `decoy_share`: correct files with a smaller share of own kernels count as wrong."""

    terms: tuple[Term, ...]
    decoy_share: float = Field(default=DECOY_SHARE, ge=0, lt=1)
    repeat_penalty: NonNegativeFloat = 0.5  # for being caught with what is known to be a hack
    gamma: float = Field(default=0.4, ge=0, le=1)  # of discounted returns; Kevin's

    @field_validator("terms")
    @classmethod
    def _each_once(cls, terms: tuple[Term, ...]) -> tuple[Term, ...]:
        names = [term.term for term in terms]
        if not names or len(set(names)) < len(names):
            raise ValueError("a scheme has at least one term, and each at most once")
        return terms

    @property
    def baselines(self) -> tuple[str, ...]:
        """Baselines that a candidate must be timed with for these terms."""
        compiled = any(
            isinstance(term, Milestones) or getattr(term, "baseline", "eager") != "eager"
            for term in self.terms
        )
        return ("eager", "compile") if compiled else ("eager",)

    def __call__(self, seen: RewardInput) -> Reward:
        if seen.outcome.kind in ("infrastructure", "unmeasured"):
            return Reward(value=None)
        right = tuple(each for each in seen.earlier if not each.decoy(self.decoy_share))
        seen = replace(seen, decoy=seen.outcome.decoy(self.decoy_share), earlier=right)
        terms: dict[str, RewardTerm] = {term.term: term(seen) for term in self.terms}
        if seen.repeats:
            terms["repeated_hack"] = RewardTerm(value=-self.repeat_penalty)
        return Reward(value=sum(term.value for term in terms.values()), terms=terms)

    def returns(self, rewards: Sequence[float | None]) -> list[float | None]:
        """Return the credit of each turn of a trajectory."""
        return discounted(rewards, self.gamma)


SCHEMES: Mapping[str, Scheme] = {
    "log-speedup": Scheme(terms=(Correct(weight=0.3), SpeedupTerm(form="log"))),
    "kevin": Scheme(terms=(Correct(weight=0.3), SpeedupTerm(form="plain"))),
    "dr-kernel": Scheme(
        terms=(
            Correct(weight=0.5),
            SpeedupTerm(weight=0.5, form="clipped", most=3.0),
            CoverageTerm(weight=0.5),
        )
    ),
    "cuda-agent": Scheme(terms=(Milestones(),)),
    "cuda-l1": Scheme(terms=(SpeedupTerm(form="plain"),)),
}


def scheme_of(name: str) -> Scheme:
    """Return one of SCHEMES, the scheme in a .toml or .json file, or that of a function alone.

    Such a function, `my.py:reward`, takes a `RewardInput` and returns a number. Raises UsageError.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    if is_function(name):
        return _as_it_is(Scheme(terms=(Custom(function=name),)))
    path = Path(name)
    if path.suffix not in (".toml", ".json"):
        raise UsageError(
            f"unknown reward scheme '{name}'",
            f"use one of {', '.join(SCHEMES)}, a .toml or .json file, or a function as FILE.py:NAME",
        )
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        return _as_it_is(Scheme.model_validate(content))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", f"use a file, or one of {', '.join(SCHEMES)}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(f"{path}: {where}: {first['msg']}", "see docs/training.md for the terms") from None
    except ValueError as error:  # no TOML, no JSON, no UTF-8
        raise UsageError(f"{path} cannot be read: {error}", "see docs/training.md for an example") from None


def _as_it_is(scheme: Scheme) -> Scheme:
    """Record the files of custom terms: a resumed training is to have the same functions."""
    terms = tuple(
        term.model_copy(update={"sha256": hash_of(term.function)}) if isinstance(term, Custom) else term
        for term in scheme.terms
    )
    return scheme.model_copy(update={"terms": terms})
