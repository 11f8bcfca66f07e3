"""Asking a worker that stands in a candidate's sandbox, and what of its answer may be shown."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool

_ODD_IN_NAME = re.compile(r"[^\w.$@]", re.ASCII)
_ODD = re.compile(r"[^ -~]")  # all but printable ASCII
_LONGEST_NAME, _LONGEST_PROBLEM = 80, 500
T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=1 << 63)]  # so that sums and products of some can be told


def ask_builder(
    pool: WorkerPool, module: str, candidate: str, timeout_s: float, question: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the answer of `module`'s `serve` to "read", run as builder of the candidate of this sha256.

    `question`: what else the message says. Raises Unavailable if it dies, takes too long, or answers with a
    "problem".
    """
    try:
        pool.import_first([module])  # in the sandbox it could not be read
        with pool.start("builder", f"{module}:serve", candidate) as worker:
            answer = worker.ask({"do": "read", **(question or {})}, timeout_s)
    except (WorkerDied, WorkerTimeout) as error:
        raise Unavailable(f"reading the kernels failed: {error}") from None
    refuse_problem(answer)
    return answer


def validated(adapter: TypeAdapter[T], given: object, of: str) -> T:
    """Validate a worker's answer. Raises Unavailable if it is not of the type."""
    try:
        return adapter.validate_python(given)
    except ValidationError:
        raise Unavailable(f"what was read of {of} is none of what there is to read") from None


def refuse_problem(answer: dict[str, Any]) -> None:
    """Raise Unavailable with the "problem" of an answer, if there is one."""
    if answer.get("problem"):
        raise Unavailable(plain(str(answer["problem"]), _LONGEST_PROBLEM))


def failed_load(answer: dict[str, Any]) -> str:
    """Reason in a worker's answer to "load", for a candidate that it could not load."""
    return plain(f"the candidate could not be loaded: {answer.get('error')}", _LONGEST_PROBLEM)


def kernel_name(text: str, ending: str = "") -> str:
    """Return the name of a function, without what no such name holds, cut to leave room for `ending`."""
    return _ODD_IN_NAME.sub("?", text)[: _LONGEST_NAME - len(ending)] + ending


def plain(text: str, longest: int) -> str:
    """Return the text in one line of printable ASCII."""
    return _ODD.sub("?", " ".join(text.split()))[:longest]
