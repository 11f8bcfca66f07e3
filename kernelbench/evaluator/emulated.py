"""Launches of a GPU candidate's kernels, where there is no GPU, and their part in its right answers.

A right answer may be a fallback's. "Right" takes that every call launched a kernel, and that every kernel of
the file ran, at one size or another; else the candidate is partly checked, or not at all. What ran is noted
by the worker, in the candidate's own process: this tells a fallback from a kernel, and stops neither a forger
nor one who launches a kernel and leaves its result.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from kernelwright.kernelbench.evaluator.processes.answers import Count, plain
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.evaluator.refusal import Refused
from kernelwright.kernelbench.kernels import SourceKernel, kernel_file
from kernelwright.kernelbench.languages import LANGUAGES
from kernelwright.kernelbench.records import Candidate, Verdict

RIGHT, PARTLY = "right", "partly checked"  # how reasons begin
_MOST_NAMES, _LONGEST_NAME, _LONGEST_TROUBLE = 256, 200, 2000
_SHOWN = 4  # kernels that a reason names


@dataclass(frozen=True)
class Launches:
    """Launches that a worker has made. `troubles`: what was raised, if only to the candidate, by kind."""

    kernels: tuple[str, ...]
    calls: Count
    idle: Count  # calls that launched nothing
    troubles: tuple[tuple[Literal["build", "fault", "unsupported", "other"], str], ...]

    def trouble(self, kind: str) -> str:
        """Return the first of this kind; empty where there is none."""
        return next((text for of, text in self.troubles if of == kind), "")


_LAUNCHES = TypeAdapter(Launches)


def launches(worker: Worker, timeout_s: float) -> Launches:
    """Return the launches of a worker. Raises Refused, WorkerDied, WorkerTimeout."""
    worker.thaw()
    answer: dict[str, Any] = worker.ask({"do": "seen"}, timeout_s)
    worker.freeze()
    try:
        found = _LAUNCHES.validate_python(answer)
    except ValidationError:
        raise Refused(Verdict.unmeasured, "not checked: what it launched cannot be read") from None
    troubles = tuple((kind, text[:_LONGEST_TROUBLE]) for kind, text in found.troubles)
    kernels = tuple(plain(name, _LONGEST_NAME) for name in found.kernels[:_MOST_NAMES])
    return Launches(kernels, found.calls, found.idle, troubles)


def refuse_unavailable(candidate: Candidate, on_gpu: bool) -> None:
    """Raise Refused where nothing here runs the file's kernels, which says nothing of them."""
    language = LANGUAGES[candidate.language]
    reason = language.unavailable if on_gpu else language.unchecked
    if on_gpu and language.needs == "an AMD GPU":
        reason = f"{language.title} kernels need {language.needs}"
    file = kernel_file(candidate.source)
    if not (on_gpu or reason) and file is not None and file.other_builder:
        reason = f"CUDA C++ that {file.other_builder} builds needs a GPU"
    if reason:
        raise Refused(Verdict.unmeasured, f"not checked: {reason}")


def refuse_failed_build(found: Launches) -> None:
    """Raise Refused where a call launched nothing and a build has failed, whose error the file catches."""
    if found.idle and (trouble := found.trouble("build")):
        raise Refused(Verdict.build_error, trouble)


def refuse_fallback(found: Launches) -> None:
    """Raise Refused unless the answers of verified calls are those of kernels that did nothing wrong."""
    refuse_failed_build(found)
    if fault := found.trouble("fault"):  # on a GPU nothing can be launched after it
        raise Refused(Verdict.runtime_error, fault)
    if found.idle or not found.calls:
        ran = found.calls - found.idle
        which = f"only {ran} of {found.calls} calls" if ran else "no call"
        why = found.trouble("unsupported") or found.trouble("other")
        because = f": {why}" if why else ", so the right answers are of what it falls back on"
        raise Refused(Verdict.unmeasured, f"not checked: {which} launched a kernel{because}")


def reason(candidate: Candidate, launched: Collection[str]) -> str:
    """Reason of a candidate's verdict, whose answers were right and which launched these kernels."""
    how = LANGUAGES[candidate.language].here
    file = kernel_file(candidate.source)
    never = [kernel for kernel in file.kernels if kernel.name not in launched] if file is not None else []
    if not never:
        return f"{RIGHT} {how}; there is no GPU to time it on"
    ran = _named(sorted(launched))
    return f"{PARTLY}: {_named(never)} never ran; the answers are right {how}, and {ran} ran"


def _named(kernels: Sequence[str | SourceKernel]) -> str:
    more = f" and {len(kernels) - _SHOWN} more" if len(kernels) > _SHOWN else ""
    return ", ".join(map(str, kernels[:_SHOWN])) + more
