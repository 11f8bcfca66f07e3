"""Headers by which endpoints say how long to wait."""

import time
from email.utils import formatdate

import pytest

from kernelwright.agent.llm.endpoint.pauses import asked_pause_s

DATE = "Fri, 27 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"date": DATE, "retry-after": "Fri, 27 Nov 2026 10:02:05 GMT"}, 125.0),
        ({"date": DATE, "retry-after": "Fri, 27 Nov 2026 09:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
        # OpenAI, Groq; what is left of the other limit does not count.
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6.5s",
          "x-ratelimit-remaining-requests": "9", "x-ratelimit-reset-requests": "50s"}, 6.5),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2m59.56s"}, 60.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "12"}, 12.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "later"}, None),
        # Anthropic
        ({"date": DATE, "anthropic-ratelimit-input-tokens-remaining": "0",
          "anthropic-ratelimit-input-tokens-reset": "2026-11-27T10:00:07Z"}, 7.0),
    ],
)  # fmt: skip
def test_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_pause_s(headers) == (None if seconds is None else pytest.approx(seconds))


def test_without_a_date_of_its_own_the_clock_here_counts() -> None:
    asked = asked_pause_s({"retry-after": formatdate(time.time() + 30, usegmt=True)})
    assert asked is not None and 28 <= asked <= 31
