"""Kernels that a candidate launches, built for chips that need not be present."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from kernelwright.kernelbench.chips.cards import Card, card_of
from kernelwright.kernelbench.chips.cost_model import LaunchPrediction, bound_in_words, predicted_call
from kernelwright.kernelbench.chips.notes import Launched
from kernelwright.kernelbench.chips.occupancy import limits_of, occupancy
from kernelwright.kernelbench.chips.torch_call import TorchCall
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import kernel_name, validated
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.sessions import Sessions
from kernelwright.kernelbench.records import Build, BuiltKernel, Candidate, Task

_LAUNCHES = "kernelwright.kernelbench.chips.launches"  # imports torch, as this process does not
_KERNELS = TypeAdapter(list[Launched], config=ConfigDict(allow_inf_nan=False))
NO_KERNEL = "it launches no kernel of Triton, Gluon, CuTe DSL, TileLang, CuPy or compile_cuda"
_CALLS = TypeAdapter(list[TorchCall], config=ConfigDict(allow_inf_nan=False))
_LONGEST_PROBLEM, _MOST_KERNELS = 300, 64


@dataclass(frozen=True)
class BuiltCall:
    """Launches of a call. `failed`: the candidate's source caused the problems."""

    kernels: list[Launched]
    problems: list[str]
    failed: bool
    torch_calls: list[TorchCall]  # in order


def builds(sessions: Sessions, task: Task, candidate: Candidate, chips: Sequence[str]) -> Iterator[Build]:
    """Yield a build for each chip, such as "sm_90". Raises TaskError."""
    for chip in chips:
        try:
            found = built(sessions, task, candidate, chip)
        except Unavailable as error:
            yield Build(chip=chip, ok=None, problem=str(error))
            continue
        problems = found.problems or ([] if found.kernels else [NO_KERNEL])
        ok = False if found.failed else None if problems else True
        yield _build(found, chip, ok, "; ".join(problems))


def _build(found: BuiltCall, chip: str, ok: bool | None, problem: str) -> Build:
    card = card_of(chip)
    if card is None or card.bytes_s is None:
        kernels = tuple(_taken(kernel, chip) for kernel in found.kernels)
        return Build(chip=chip, ok=ok, kernels=kernels, problem=problem)
    call = predicted_call(found.kernels, found.torch_calls, card)
    times = {id(launch): prediction for launch, prediction in call.launches}
    return Build(
        chip=chip,
        ok=ok,
        kernels=tuple(_taken(kernel, chip, times.get(id(kernel)), card) for kernel in found.kernels),
        problem=problem,
        card=card.name,
        predicted_us=None if call.left or not found.kernels else call.time_us,
    )


def _taken(
    kernel: Launched, chip: str, predicted: LaunchPrediction | None = None, card: Card | None = None
) -> BuiltKernel:
    held = occupancy(chip, kernel.threads, kernel.registers, kernel.shared_bytes)
    return BuiltKernel(
        name=kernel_name(kernel.name),
        launches=kernel.launches,
        threads=kernel.threads,
        registers=kernel.registers,
        shared_bytes=kernel.shared_bytes,
        stack_bytes=kernel.stack_bytes,
        spills=kernel.whole.spills,
        occupancy=held.share,
        limited_by=held.limited_by,
        predicted_us=predicted.time_us if predicted is not None else None,
        bound=bound_in_words(predicted, card) if predicted is not None and card is not None else "",
    )


def built(sessions: Sessions, task: Task, candidate: Candidate, chip: str) -> BuiltCall:
    """Build the kernels that a call launches, without running them. Raises Unavailable, TaskError."""
    with sessions.computing():
        session = sessions.open(task)
        sessions.pool.import_first([_LAUNCHES])  # in the sandbox it could not be read
        limit_s = sessions.limits.build_s
        sha256, source = candidate.sha256, candidate.source
        try:
            with sessions.pool.start("builder", f"{_LAUNCHES}:serve", sha256) as worker:
                worker.ask({"do": "open", "capability": capability(chip)}, limit_s)
                loaded = session.load_into(worker, source, "candidate", "ModelNew", limit_s)
                session.give_input(worker)
                worker.thaw()
                answer = worker.ask({"do": "read"}, limit_s)
        except (WorkerDied, WorkerTimeout) as error:
            raise Unavailable(f"building its kernels failed: {error}") from None
    problems = _texts(answer.get("problems"))
    if not loaded.get("ok"):
        problems.append(_text(f"it cannot be loaded: {loaded.get('error')}"))
    failed = bool(answer.get("failed") or loaded.get("build"))
    return BuiltCall(
        kernels=validated(_KERNELS, answer.get("kernels"), "its kernels")[:_MOST_KERNELS],
        problems=problems,
        failed=failed,
        torch_calls=validated(_CALLS, answer.get("torch_calls", []), "its calls of torch"),
    )


def capability(chip: str) -> int:
    """Return the compute capability of a chip: 90 for "sm_90". Raises ValueError for an unknown chip."""
    limits_of(chip)
    return int(re.sub(r"\D", "", chip))


def _texts(given: Any) -> list[str]:
    return [_text(str(each)) for each in given[:8]] if isinstance(given, list) else []


def _text(given: str) -> str:
    return "".join(c if c.isprintable() else " " for c in given)[:_LONGEST_PROBLEM]
