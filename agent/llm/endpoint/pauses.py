"""Pause that an endpoint asks for, by the headers of its refusal.

retry-after-ms: 250                                      milliseconds
retry-after: 1.5                                         seconds
retry-after: Fri, 27 Nov 2026 10:00:05 GMT               a date
x-ratelimit-remaining-tokens: 0                          of a limit that is used up, until there is some
x-ratelimit-reset-tokens: 1m30.5s                        more again
anthropic-ratelimit-tokens-remaining: 0                  the same, with a date
anthropic-ratelimit-tokens-reset: 2026-11-27T10:00:05Z
"""

import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_RESET_S = 60.0  # what is left of a limit is back before it has been reset in full
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNITS_S = (86400.0, 3600.0, 60.0, 1.0, 1e-3)
_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")


def asked_pause_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, given headers by their names in small letters; None if none says."""
    now = _date(headers.get("date", "")) or time.time()  # by the endpoint's own clock, if it tells
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        if (asked := _number(headers.get(name, ""))) is not None:
            return asked * unit_s
    if (until := _date(headers.get("retry-after", ""))) is not None:
        return max(0.0, until - now)
    resets = [_seconds(value, now) for value in _of_used_up_limits(headers)]
    known = [seconds for seconds in resets if seconds is not None]
    return min(LONGEST_RESET_S, max(known)) if known else None


def _of_used_up_limits(headers: Mapping[str, str]) -> list[str]:
    found = []
    for limit in _LIMITS:
        for remaining, reset in (
            (f"x-ratelimit-remaining-{limit}", f"x-ratelimit-reset-{limit}"),
            (f"anthropic-ratelimit-{limit}-remaining", f"anthropic-ratelimit-{limit}-reset"),
        ):
            if reset in headers and _number(headers.get(remaining, "")) == 0:
                found.append(headers[reset])
    return found


def _seconds(text: str, now: float) -> float | None:
    """Return the seconds of `1m30.5s`, `20ms`, `2.5`, or until a date."""
    if (number := _number(text)) is not None:
        return number
    if text and (found := _DURATION.fullmatch(text)) is not None:
        parts = zip(found.groups(), _UNITS_S, strict=True)
        return math.fsum((_number(part or "0") or 0.0) * unit for part, unit in parts)
    until = _date(text)
    return None if until is None else max(0.0, until - now)


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) and found >= 0 else None


def _date(text: str) -> float | None:
    """Return the seconds since the epoch of a date as in HTTP, or of ISO 8601."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            found = read(text)
        except ValueError:
            continue
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    return None
