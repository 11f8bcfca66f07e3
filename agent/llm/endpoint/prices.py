"""Prices of tokens: the user's own, then those that the package genai-prices lists; others are unknown."""

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from pydantic import NonNegativeFloat, TypeAdapter, ValidationError

from kernelwright.agent.llm.model import Usage
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record

_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
_EXAMPLE = (
    '["my-model"] followed by the lines prompt = 2.0 and completion = 8.0, in dollars per million tokens'
)


class Priced(Protocol):
    def usd(self, usage: Usage) -> float:
        """Return the dollars that these tokens cost."""
        ...


class Price(Record):
    """US dollars per million tokens."""

    prompt: NonNegativeFloat
    completion: NonNegativeFloat
    cached_prompt: NonNegativeFloat | None = None  # read from a cache; None: as the rest of the prompt
    cache_write: NonNegativeFloat | None = None  # written to a cache; None: as the rest of the prompt

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the price in a text such as "2/8", of prompt and completion. Raises UsageError."""
        try:
            prompt, completion = (float(part) for part in text.split("/"))
            return cls(prompt=prompt, completion=completion)
        except ValueError:
            fix = "give dollars per million tokens of prompt and completion, such as 2/8"
            raise UsageError(f"invalid --price {text}", fix) from None

    def usd(self, usage: Usage) -> float:
        cached = self.prompt if self.cached_prompt is None else self.cached_prompt
        written = self.prompt if self.cache_write is None else self.cache_write
        fresh_tokens = usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens
        million = (
            fresh_tokens * self.prompt
            + usage.cached_tokens * cached
            + usage.cache_write_tokens * written
            + usage.completion_tokens * self.completion
        )
        return million / 1e6


@dataclass(frozen=True)
class ListedPrice:
    """Price of a model in genai-prices, on the day of the call."""

    model: str
    provider: str
    tier: str | None = None  # of service

    def usd(self, usage: Usage) -> float:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price

        tokens = Tokens(
            input_tokens=usage.prompt_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.completion_tokens,
        )
        context = {"service_tier": self.tier} if self.tier is not None else None
        price = calc_price(tokens, self.model, provider_id=self.provider, price_context=context)
        return float(price.total_price)


class Prices:
    """Prices by model."""

    def __init__(
        self,
        own: Mapping[str, Price],
        *,
        listed: bool = False,
        address: str | None = None,
        tier: str | None = None,
    ) -> None:
        """`own`: prices that go before those `listed` by genai-prices, for an endpoint's address and tier."""
        self._own, self._listed, self._address, self._tier = own, listed, address, tier
        self._found: dict[str, Priced | None] = {}

    def of(self, model: str) -> Priced | None:
        """Return the price of a model, or of the model that it is a dated release of.

        A prefix names the provider: "openrouter/anthropic/claude-opus-5.5", "gemini/gemini-2.5-pro".
        """
        if model not in self._found:
            own = self._own.get(model) or self._own.get(_DATED.sub("", model))
            self._found[model] = own or (self._listed_price(model) if self._listed else None)
        return self._found[model]

    def _listed_price(self, model: str) -> ListedPrice | None:
        from genai_prices import Usage as Tokens  # takes a quarter of a second to import
        from genai_prices import calc_price

        first, _, rest = model.removeprefix("models/").partition("/")
        tokens = Tokens(input_tokens=1)
        if self._address is not None:
            with suppress(LookupError):
                found = calc_price(tokens, model, provider_api_url=self._address)
                return ListedPrice(model, found.provider.id, self._tier)
        for name, provider in ((model, None), (model.removeprefix("models/"), None), (rest, first)):
            with suppress(LookupError):
                found = calc_price(tokens, name, provider_id=provider)
                return ListedPrice(name, found.provider.id, self._tier)
        return None


def read_prices(path: Path) -> dict[str, Price]:
    """Read a table of prices. Raises UsageError if the file is not such a table."""
    fix = f"write {_EXAMPLE}"
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prices in {path}: {error}", fix) from None
    try:
        return TypeAdapter(dict[str, Price]).validate_python(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}", fix) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {where}: {first['msg']}", fix) from None
