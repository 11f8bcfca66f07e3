"""Guards of a server: bearer tokens, and errors as JSON with what to do about them."""

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException

from kernelwright.kernelbench.errors import KernelwrightError, StorageError, UsageError
from kernelwright.kernelbench.remote.wire import Problem
from kernelwright.rl_training.serving.evaluator.queue import KeyTakenError, QueueFull
from kernelwright.rl_training.serving.evaluator.tasks import NotAllowedError

LEAST_TOKEN = 16  # characters
_ANYONE = "anyone"


class BearerTokens(HTTPBearer):
    """Dependency that returns the name of who asks, by their token, and refuses who has none."""

    def __init__(self, tokens: Sequence[str]) -> None:
        """`tokens`: all that are good; none at all: everybody may ask."""
        super().__init__(auto_error=False, scheme_name="token")
        self._tokens = [token.encode() for token in tokens]

    async def __call__(self, request: Request) -> str:  # type: ignore[override]
        if not self._tokens:
            return _ANYONE
        found = await super().__call__(request)
        given = found.credentials.encode() if found is not None else b""
        # All are compared, in a time that does not depend on the token.
        good = [hmac.compare_digest(given, token) for token in self._tokens]
        if not any(good):
            raise HTTPException(401, "a bearer token is missing or wrong", {"WWW-Authenticate": "Bearer"})
        return hashlib.sha256(given).hexdigest()[:16]


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
