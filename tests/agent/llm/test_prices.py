"""What a call costs follows from the table; a model that is not in it has no price, not a price of zero."""

from pathlib import Path

import pytest

from kernelwright.agent.llm.model import Usage
from kernelwright.agent.llm.prices import Price, Prices
from kernelwright.kernelbench.errors import UsageError


def test_cached_tokens_of_the_prompt_have_their_own_price() -> None:
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=100_000)
    assert Price(prompt=2, completion=8, cached_prompt=0.5).usd(usage) == pytest.approx(1.2 + 0.2 + 0.8)
    assert Price(prompt=2, completion=8).usd(usage) == pytest.approx(2.8)


def test_the_shipped_table_can_be_read_and_covers_dated_releases() -> None:
    prices = Prices.read()
    assert prices.of("gpt-4.1") is not None
    assert prices.of("gpt-4.1-2025-04-14") == prices.of("gpt-4.1")
    assert prices.of("gpt-4.1-turbo") is None and prices.of("my-own") is None


def test_a_table_of_one_s_own_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('["my-own"]\nprompt = 0\ncompletion = 0\n')
    prices = Prices.read(path)
    assert prices.of("my-own") == Price(prompt=0, completion=0) and prices.of("gpt-4.1") is None


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
        Prices.read(path)


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="cannot read the prices"):
        Prices.read(Path("nowhere.toml"))
