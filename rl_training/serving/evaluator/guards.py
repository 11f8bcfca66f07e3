"""Guards of a server: bearer tokens, and errors as JSON with what to do about them."""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException

from kernelwright.kernelbench.errors import KernelwrightError, StorageError, UsageError
from kernelwright.kernelbench.remote.wire import Problem
from kernelwright.rl_training.serving.evaluator.queue import KeyTakenError, QueueFull
from kernelwright.rl_training.serving.evaluator.tasks import NotAllowedError

LEAST_TOKEN = 16  # characters
MOST_WAIT_S = 600.0  # that a request may wait for a result
_ANYONE = "anyone"
_ASK_AGAIN_S = 5
_BEARER = HTTPBearer(auto_error=False, scheme_name="token")


class RewardUnknown(Exception):  # noqa: N818 - a state, which may pass
    """No reward, or none yet."""


async def who_asks(request: Request, _: Annotated[object, Security(_BEARER)]) -> str:
    """Return the name of who asks, by their token. Raises HTTPException for who has none.

    The tokens are those in the application's state; where it has none, everybody may ask. Clients that cannot
    set a header have the token as a password: http://any:TOKEN@gpu7:8900.
    """
    tokens: Sequence[str] = request.app.state.tokens
    if not tokens:
        return _ANYONE
    given = _given(request.headers.get("authorization", "")).encode()
    # All are compared, in a time that does not depend on the token.
    good = [hmac.compare_digest(given, token.encode()) for token in tokens]
    if not any(good):
        raise HTTPException(401, "a bearer token is missing or wrong", {"WWW-Authenticate": "Bearer"})
    return hashlib.sha256(given).hexdigest()[:16]


Client = Annotated[str, Depends(who_asks)]
Wait = Annotated[float, Query(ge=0, le=MOST_WAIT_S, description="Seconds to wait for the result.")]
Full = Annotated[bool, Query(description="Also give the whole record of the evaluation.")]


def _given(header: str) -> str:
    """Return the token in an Authorization header; empty if there is none."""
    kind, _, value = header.partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return value.strip() if kind.lower() == "bearer" else ""


def read_tokens(path: Path) -> list[str]:
    """Read tokens, one a line, `#` comments. Raises UsageError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "give a text file") from None
    tokens = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    short = next((token for token in tokens if len(token) < LEAST_TOKEN or " " in token), None)
    if not tokens or short is not None:
        raise UsageError(
            f"{path} has no token" if short is None else f"a token in {path} is short or has spaces",
            f"write at least {LEAST_TOKEN} characters, such as: openssl rand -hex 32",
        )
    return tokens


def add_errors(app: FastAPI) -> None:
    """Have errors answered by `Problem`: what is wrong, and what to do."""

    @app.exception_handler(QueueFull)
    async def full(_: Request, error: QueueFull) -> JSONResponse:
        return _problem(429, "the queue is full", f"try again in {error.seconds} s", error.seconds)

    @app.exception_handler(RewardUnknown)
    async def unknown(_: Request, error: RewardUnknown) -> JSONResponse:
        return _problem(503, str(error), "ask again", _ASK_AGAIN_S)

    @app.exception_handler(KernelwrightError)
    async def ours(_: Request, error: KernelwrightError) -> JSONResponse:
        return _problem(_status(error), error.message, error.fix)

    @app.exception_handler(StarletteHTTPException)
    async def http(_: Request, error: StarletteHTTPException) -> JSONResponse:
        answer = _problem(error.status_code, str(error.detail), _FIXES.get(error.status_code, "see /docs"))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        said = first["msg"].removeprefix("Value error, ")
        return _problem(422, f"{where}: {said}" if where else said, "see /docs for what it takes")


_FIXES = {
    401: "send it as Authorization: Bearer TOKEN",
    404: "see /docs for the routes",
    413: "send less at a time",
}


def _status(error: KernelwrightError) -> int:
    if isinstance(error, NotAllowedError):
        return 403
    if isinstance(error, KeyTakenError):
        return 409
    if isinstance(error, UsageError):
        return 422
    return 507 if isinstance(error, StorageError) else 500


def _problem(status: int, error: str, fix: str, retry_after: int | None = None) -> JSONResponse:
    headers = {"Retry-After": str(retry_after)} if retry_after is not None else None
    return JSONResponse(Problem(error=error, fix=fix).model_dump(), status, headers)
