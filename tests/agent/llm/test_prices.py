"""Costs of calls follow from prices; a model that nobody lists has none, not a price of zero."""

from pathlib import Path

import pytest

from kernelwright.agent.llm.endpoint.prices import Price, Prices, read_prices
from kernelwright.agent.llm.model import Usage
from kernelwright.kernelbench.errors import UsageError


def test_cached_tokens_of_the_prompt_have_their_own_price() -> None:
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=100_000)
    assert Price(prompt=2, completion=8, cached_prompt=0.5).usd(usage) == pytest.approx(1.2 + 0.2 + 0.8)
    assert Price(prompt=2, completion=8).usd(usage) == pytest.approx(2.8)


MILLION = Usage(prompt_tokens=1_000_000, completion_tokens=1_000_000)


def usd(prices: Prices, model: str, usage: Usage = MILLION) -> float:
    price = prices.of(model)
    assert price is not None, model
    return price.usd(usage)


def test_tokens_written_to_a_cache_have_their_own_price() -> None:
    usage = Usage(
        prompt_tokens=1_000_000, cached_tokens=400_000, cache_write_tokens=200_000, completion_tokens=0
    )
    assert Price(prompt=2, completion=8, cached_prompt=0.5, cache_write=3).usd(usage) == pytest.approx(
        0.4 * 2 + 0.2 + 0.6
    )


def test_listed_prices_cover_dated_releases_and_leave_the_rest_unknown() -> None:
    prices = Prices({}, listed=True)
    assert usd(prices, "gpt-4.1") == usd(prices, "gpt-4.1-2025-04-14") == 10.0
    assert prices.of("gpt-4.1-turbo") is None and prices.of("my-own") is None
    assert Prices({}).of("gpt-4.1") is None


def test_a_prefix_or_the_address_names_the_provider() -> None:
    prices = Prices({}, listed=True)
    anthropic = usd(prices, "claude-opus-4-5")
    assert anthropic > 0 and usd(prices, "anthropic/claude-opus-4-5") == anthropic
    assert usd(prices, "openrouter/anthropic/claude-opus-4.5") == anthropic
    openrouter = Prices({}, listed=True, address="https://openrouter.ai/api/v1")
    assert usd(openrouter, "anthropic/claude-opus-4.5") == anthropic
    assert usd(prices, "models/gemini-2.5-pro") == usd(prices, "gemini/gemini-2.5-pro") > 0
    assert prices.of("nobody/gpt-4.1") is None


def test_listed_prices_know_caches_and_tiers() -> None:
    prices = Prices({}, listed=True)
    plain, read, written = (
        usd(prices, "claude-opus-4-5", Usage(prompt_tokens=100_000, completion_tokens=0, **tokens))
        for tokens in ({}, {"cached_tokens": 100_000}, {"cache_write_tokens": 100_000})
    )
    assert read == pytest.approx(plain / 10) and written == pytest.approx(plain * 1.25)
    assert usd(Prices({}, listed=True, tier="flex"), "o3") == usd(prices, "o3") / 2


def test_one_s_own_prices_go_first(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('["my-own"]\nprompt = 0\ncompletion = 0\n\n["gpt-4.1"]\nprompt = 1\ncompletion = 2\n')
    prices = Prices(read_prices(path), listed=True)
    assert prices.of("my-own") == Price(prompt=0, completion=0)
    assert usd(prices, "gpt-4.1") == 3.0 and usd(prices, "o3") > 0


@pytest.mark.parametrize("text", ["2", "two/8", "2/8/1", "-1/8", ""])
def test_a_price_that_is_none_says_what_to_give(text: str) -> None:
    assert Price.parse("2/8.5") == Price(prompt=2, completion=8.5)
    with pytest.raises(UsageError, match=r"invalid --price .* such as 2/8"):
        Price.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "is not TOML"),
        ('["m"]\nprompt = 1\n', "m.completion: Field required"),
        ('["m"]\nprompt = -1\ncompletion = 1\n', "m.prompt"),
        ('["m"]\nprompt = 1\ncompletion = 1\nper = "token"\n', "m.per"),
        ("prompt = 1\n", "prompt"),
    ],
)
def test_a_table_that_is_none_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_prices(path)


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="cannot read the prices"):
        read_prices(Path("nowhere.toml"))
