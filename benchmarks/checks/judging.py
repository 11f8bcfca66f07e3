"""Judging of a candidate by published checks, each in a process of its own, which may crash."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType

import torch

from benchmarks.checks.published import CHECKS, CheckedTask, differs

_CHECK_S = 30  # a check that takes longer has not accepted
_LOAD_S = 120.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "benchmarks.checks.published"])
_YES, _NO = 0, 1


@dataclass(frozen=True)
class Judgement:
    """Judgement of a candidate: whether it ever computes something else, and which checks accept it."""

    differs: bool
    accepted: dict[str, bool]


def judge(references: Sequence[str], candidate: str, right: str) -> Judgement | None:
    """Judge a candidate beside the right one; None where it cannot be loaded.

    All are texts of files; `references`: one a size, the task's own first.
    """
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_judged, args=(theirs, tuple(references), candidate, right))
    process.start()
    theirs.close()
    try:
        patience_s = _LOAD_S + _CHECK_S * (1 + len(CHECKS))
        return ours.recv() if ours.poll(patience_s) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()
        ours.close()


def _judged(answers: Connection, references: Sequence[str], candidate: str, right: str) -> None:
    torch.set_num_threads(1)
    subject = CheckedTask([_module(text) for text in references], _module(candidate))
    other = _module(right)
    answers.send(
        Judgement(
            differs=_apart(lambda: differs(subject, other)) is not False,
            accepted={name: _apart(lambda: check(subject)) is True for name, check in CHECKS.items()},  # noqa: B023
        )
    )


def _apart(ask: Callable[[], bool]) -> bool | None:
    """Ask in a fork of this process, which has computed nothing yet; None where that raises or crashes."""
    child = os.fork()
    if child == 0:
        signal.alarm(_CHECK_S)
        answer = 2
        try:
            with torch.no_grad():
                answer = _YES if ask() else _NO
        finally:
            os._exit(answer)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {_YES: True, _NO: False}.get(code)


def _module(source: str) -> ModuleType:
    module = ModuleType("judged")
    exec(compile(source, "judged.py", "exec"), module.__dict__)
    return module
