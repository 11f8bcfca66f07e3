"""Is the candidate right? Every input family, on secret seeds, each call held to its float64 budget."""

import random
from collections.abc import Sequence

from kernelbench.evaluator.process import Worker
from kernelbench.evaluator.session import Comparison, Refused, TaskSession
from kernelbench.records import Correctness, Verdict


def verify(session: TaskSession, worker: Worker) -> Correctness:
    """Raises Refused with the verdict when an output is not within its budget."""
    families = [name for name in session.protocol.families if name != "perturbed"]
    random.SystemRandom().shuffle(families)
    at_once = max(1, min(2 * session.calls - 1, session.slots))
    seen = _Seen()
    for start in range(0, len(families), at_once):
        chunk = families[start : start + at_once]
        slots = list(range(len(chunk)))
        for slot, family in zip(slots, chunk, strict=True):
            session.fill([slot], family)
        _check_block(session, worker, slots, chunk, seen)
    if "perturbed" in session.protocol.families:
        session.fill([0])
        _check_block(session, worker, [0], ["task"], seen)
        session.fill([0], "perturbed")
        _check_block(session, worker, [0], ["perturbed"], seen)
    return Correctness(
        inputs_tried=seen.inputs,
        error=seen.error,
        reference_error=seen.reference_error,
        worst_input=seen.worst,
    )


class _Seen:
    def __init__(self) -> None:
        self.inputs = 0
        self.error = 0.0
        self.reference_error = 0.0
        self.worst = ""

    def add(self, family: str, error: float, reference_error: float | None) -> None:
        self.inputs += 1
        if error >= self.error:
            self.error, self.worst = error, family
        self.reference_error = max(self.reference_error, reference_error or 0.0)


def _check_block(
    session: TaskSession, worker: Worker, slots: Sequence[int], families: Sequence[str], seen: _Seen
) -> None:
    """Run the slots, the first of them twice, and compare every call."""
    order = [*slots, slots[0]]
    seeds = session.call_seeds(len(slots))
    seeds.append(seeds[0])
    before = [session.fingerprint(slot) for slot in slots]
    block = session.run(worker, order, seeds)
    for slot, family, fingerprint in zip(slots, families, before, strict=True):
        if session.fingerprint(slot) != fingerprint:
            raise Refused(Verdict.wrong_output, f"forward changes its inputs (family {family})")
    for position, (slot, family) in enumerate(zip(slots, families, strict=True)):
        expected = session.expect(slot, seeds[position], rate=True)
        if not expected["usable"]:
            continue
        result = session.compare(worker, block.outputs[position])
        again = session.compare(worker, block.outputs[-1]) if position == 0 else result
        if result.within_budget != again.within_budget:
            detail = result.detail or again.detail
            raise Refused(Verdict.nondeterministic, f"the same inputs twice (family {family}): {detail}")
        if not result.within_budget:
            raise Refused(Verdict.wrong_output, f"family {family}: {describe(result)}")
        assert result.error is not None
        seen.add(family, result.error, expected["reference_error"])


def describe(result: Comparison) -> str:
    times = "" if result.error is None else f" ({result.error:.3g} times the error budget)"
    return f"{result.detail}{times}"
