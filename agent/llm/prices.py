"""Prices of tokens, from a table that the user can replace; other models have no known price."""

import re
import tomllib
from pathlib import Path
from typing import Self

from pydantic import NonNegativeFloat, TypeAdapter, ValidationError

from kernelwright.agent.llm.model import Usage
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record

SHIPPED = Path(__file__).with_name("prices.toml")
_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")


class Price(Record):
    """US dollars per million tokens."""

    prompt: NonNegativeFloat
    completion: NonNegativeFloat
    cached_prompt: NonNegativeFloat | None = None  # None: as the rest of the prompt

    def usd(self, usage: Usage) -> float:
        cached = self.prompt if self.cached_prompt is None else self.cached_prompt
        fresh_tokens = usage.prompt_tokens - usage.cached_tokens
        million = (
            fresh_tokens * self.prompt
            + usage.cached_tokens * cached
            + usage.completion_tokens * self.completion
        )
        return million / 1e6


class Prices:
    """Prices by model."""

    def __init__(self, prices: dict[str, Price]) -> None:
        self._prices = prices

    @classmethod
    def read(cls, path: Path = SHIPPED) -> Self:
        """Read a table of prices. Raises UsageError if the file is not such a table."""
        fix = f"write it like {SHIPPED}"
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the prices in {path}: {error}", fix) from None
        try:
            return cls(TypeAdapter(dict[str, Price]).validate_python(tomllib.loads(text)))
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is not TOML: {error}", fix) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{path}: {where}: {first['msg']}", fix) from None

    def of(self, model: str) -> Price | None:
        """Return the price of a model, or of the model that it is a dated release of."""
        return self._prices.get(model) or self._prices.get(_DATED.sub("", model))
