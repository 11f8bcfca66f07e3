"""Verification of a candidate: every input family, on secret seeds, each call held to its float64 budget."""

import math
import random
from collections.abc import Sequence

from kernelwright.kernelbench.evaluator.correctness.oracle_client import CallComparison
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.evaluator.refusal import Refused
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.records import Correctness, Verdict

_MOST_DOUBTS = 2  # families whose few elements beyond their budgets another draw may decide
_CHANCE = random.SystemRandom()
_MOST_DRAWS = 5  # of a family, until the reference is defined on one


def verify(session: TaskSession, worker: Worker) -> Correctness:
    """Verify the candidate. Raises Refused with the verdict when an output is not within its budget.

    Where that may be chance, another draw of the family decides; where that one is in doubt too, a third.
    """
    families = [name for name in session.protocol.families if name != "perturbed"]
    families += session.oracle.families
    at_once = max(1, min(session.most_calls - 1, session.slots))
    chunks = _chunks(families, at_once)
    session.oracle.begin()
    seen = _Seen()
    slots: list[int] = []
    for chunk in chunks:
        slots = _CHANCE.sample(range(session.slots), len(chunk))
        _check_block(session, worker, slots, chunk, seen)
    if "perturbed" in session.protocol.families:  # an input that it has just answered, but for a little
        # The task's own: of a row with one element that is not zero, another may change no output.
        drawn = [slot for slot, family in zip(slots, chunks[-1], strict=True) if family == "task"]
        _check_block(session, worker, [_CHANCE.choice(drawn)], ["perturbed"], seen)
    doubtful = tuple(seen.doubtful)
    if len(doubtful) > _MOST_DOUBTS:
        raise Refused(Verdict.wrong_output, _few(doubtful))
    for family in doubtful:
        _draw_again(session, worker, slots, family, seen)
        if len(seen.doubtful) > len(doubtful):
            seen.doubtful.pop()
            _draw_again(session, worker, slots, family, seen, decides=True)
    return Correctness(
        inputs_tried=seen.inputs,
        error=seen.error,
        reference_error=seen.reference_error,
        worst_input=seen.worst,
    )


def _chunks(families: Sequence[str], at_once: int) -> list[list[str]]:
    """Return the families in random order, in blocks of so many calls, one of the last the task's own."""
    shuffled = _CHANCE.sample(families, len(families))
    chunks = [shuffled[start : start + at_once] for start in range(0, len(shuffled), at_once)]
    if "task" not in chunks[-1]:
        earlier = _CHANCE.choice([chunk for chunk in chunks if "task" in chunk])
        place, other = earlier.index("task"), _CHANCE.randrange(len(chunks[-1]))
        earlier[place], chunks[-1][other] = chunks[-1][other], "task"
    return chunks


def _draw_again(
    session: TaskSession,
    worker: Worker,
    slots: Sequence[int],
    family: str,
    seen: "_Seen",
    decides: bool = False,
) -> None:
    """Hold the worker to another draw of a family, of which the reference is defined on one soon."""
    known = seen.inputs
    for _ in range(_MOST_DRAWS):
        slot = _CHANCE.choice(slots)
        if family == "perturbed":
            session.oracle.fill([slot], "task")
        _check_block(session, worker, [slot], [family], seen, decides)
        if seen.inputs > known:
            return
    raise Refused(Verdict.wrong_output, _few([family]))


def _few(families: Sequence[str]) -> str:
    return f"a few elements are beyond the error budget, in families {', '.join(families)}"


class _Seen:
    def __init__(self) -> None:
        self.inputs = 0
        self.error = 0.0
        self.reference_error = 0.0
        self.worst = ""
        self.doubtful: list[str] = []  # families of which another draw has to decide
        self._right: dict[str, None] = {}  # families, in order

    @property
    def before(self) -> str:
        """Families on which the candidate was right so far, in words."""
        right = [family for family in self._right if family not in self.doubtful]
        return f"right before on {', '.join(right)}" if right else "the first that was tried"

    def add(self, family: str, error: float, reference_error: float | None) -> None:
        self.inputs += 1
        self._right[family] = None
        if error >= self.error:
            self.error, self.worst = error, family
        self.reference_error = max(self.reference_error, reference_error or 0.0)


def _check_block(
    session: TaskSession,
    worker: Worker,
    slots: Sequence[int],
    families: Sequence[str],
    seen: _Seen,
    decides: bool = False,
) -> None:
    """Fill the slots, run them, the first of them twice, and compare every call."""
    at_once = len(slots) < session.most_calls  # whether there is memory for a further call
    session.prepare(worker, len(slots) + at_once)
    for slot, family in zip(slots, families, strict=True):
        session.oracle.fill([slot], family)
    seeds = session.oracle.call_seeds(len(slots))
    block = session.run(worker, [*slots, *slots[:at_once]], [*seeds, *seeds[:at_once]])
    session.check_inputs(worker, slots)
    for call, (slot, family) in enumerate(zip(slots, families, strict=True)):
        expected = session.oracle.expect(slot, seeds[call], rate=True)
        if not expected["usable"]:
            continue  # a family on which the reference itself is not defined
        result = again = session.oracle.compare(worker, block.outputs, call)
        if call == 0 and at_once:
            again = session.oracle.compare(worker, block.outputs, len(slots))
        elif call == 0:
            again = _run_again(session, worker, slot, seeds[0])
        both = (result, again)
        if not decides and all(each.within_budget or each.doubtful for each in both):
            if not all(each.within_budget for each in both):
                seen.doubtful.append(family)
        elif result.within_budget != again.within_budget:
            reason = f"the same inputs twice (family {family}), right once and wrong once: {_worse_of(both)}"
            raise Refused(Verdict.nondeterministic, reason)
        elif not result.within_budget:
            raise Refused(Verdict.wrong_output, f"family {family} ({seen.before}): {_worse_of(both)}")
        seen.add(family, max(each.error or 0.0 for each in both), expected["reference_error"])


def _run_again(session: TaskSession, worker: Worker, slot: int, seed: int | None) -> CallComparison:
    """Compare another call on inputs that are there, in a block of its own."""
    session.prepare(worker, 1)
    block = session.run(worker, [slot], [seed])
    session.check_inputs(worker, [slot])
    return session.oracle.compare(worker, block.outputs, 0)


def _worse_of(both: tuple[CallComparison, CallComparison]) -> str:
    return describe(max(both, key=lambda result: math.inf if result.error is None else result.error))


def describe(result: CallComparison) -> str:
    """Return what is wrong with a call: numbers, and the pattern where there is one."""
    times = "" if result.error is None else f"; at worst {result.error:.3g} times the error budget"
    pattern = f". {result.pattern}" if result.pattern else ""
    return f"{result.detail}{times}{pattern}"
