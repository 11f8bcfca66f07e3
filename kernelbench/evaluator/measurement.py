"""How fast is the candidate? Alternating blocks on the judge's clock, every one of them looked at."""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kernelbench.evaluator.process import Worker
from kernelbench.evaluator.refusal import BaselineFailed, CallFailed, Refused
from kernelbench.evaluator.session import Block, TaskSession
from kernelbench.evaluator.timing import TimedBlock, Timings
from kernelbench.evaluator.verification import describe
from kernelbench.records import Verdict

_SLOW = 4.0  # times eager
_CHECKED_FAMILIES = ("task", "zero_centred", "heavy_tailed")


def measure(session: TaskSession, workers: Mapping[str, Worker], rounds: int) -> Timings:
    """Time all `workers` ("candidate", "eager" and other baselines) side by side, round by round.

    Within a round every worker gets the same never-seen inputs: N calls each in one order, then 2N
    calls each in the reverse order. The inputs of a phase come to be when all workers stand still.
    After each phase a part of one output is held against eager's; in some rounds, chosen in secret,
    one call is held against float64 too. Raises Refused when the candidate fails or its outputs are
    not what they must be, BaselineFailed when a baseline fails.
    """
    protocol, calls = session.protocol, session.calls
    chosen = secrets.SystemRandom()
    verified = set(chosen.sample(range(rounds), min(protocol.verified_blocks, rounds)))
    verified.add(
        chosen.randrange(min(protocol.min_rounds, rounds))
    )  # one that happens even when time runs short
    timed: dict[str, list[TimedBlock]] = {name: [] for name in workers}
    empty_s: list[float] = []
    started = time.monotonic()
    names = list(workers)
    pilot = _phase(session, workers, names, [chosen.randrange(session.slots)], check=False)
    slowdown = pilot["candidate"].seconds / pilot["eager"].seconds
    if slowdown > _SLOW:  # a few long calls say as much as many
        calls, rounds = max(1, int(calls / slowdown)), min(rounds, protocol.min_rounds)
    for number in range(rounds):
        slots = chosen.sample(range(session.slots), 3 * calls)
        check_long = secrets.randbelow(2) == 1
        check = number in verified
        short = _phase(session, workers, names, slots[2 * calls :], check and not check_long)
        long = _phase(session, workers, names[::-1], slots[: 2 * calls], check and check_long)
        for name in names:
            timed[name].append(TimedBlock(calls, short[name].seconds))
            timed[name].append(TimedBlock(2 * calls, long[name].seconds))
        with _blamed(session, "eager"):
            empty_s.append(session.run(workers["eager"], [], []).seconds)
        names.append(names.pop(0))
        if time.monotonic() - started > protocol.timing_s and number + 1 >= protocol.min_rounds:
            break
    return Timings(timed, empty_s)


def _phase(
    session: TaskSession,
    workers: Mapping[str, Worker],
    order: Sequence[str],
    slots: Sequence[int],
    check: bool,
) -> dict[str, Block]:
    """Every worker's block on the same fresh inputs; with `check`, one call is verified against float64."""
    for name in order:
        with _blamed(session, name):
            session.prepare(workers[name])
    session.oracle.fill(slots)
    secret = secrets.randbelow(len(slots))
    if check:
        session.oracle.fill([slots[secret]], secrets.choice(_CHECKED_FAMILIES))
    seeds = session.oracle.call_seeds(len(slots))
    blocks: dict[str, Block] = {}
    for name in order:
        with _blamed(session, name):
            blocks[name] = session.run(workers[name], slots, seeds)
    candidate, block = workers["candidate"], blocks["candidate"]
    if check:
        session.check_inputs(candidate)
        expected = session.oracle.expect(slots[secret], seeds[secret])
        result = session.oracle.compare(candidate, block.outputs, secret)
        if expected["usable"] and not result.within_budget:
            raise Refused(Verdict.cheating, f"right when verified, wrong when timed: {describe(result)}")
    others = blocks["eager"].outputs
    unlike = secret if check else None  # its inputs may be of another family, and it has been verified
    if not session.oracle.resembles(candidate, block.outputs, workers["eager"], others, but=unlike):
        raise Refused(
            Verdict.cheating, "right when verified; when timed, its outputs are not those of the reference"
        )
    return blocks


@contextmanager
def _blamed(session: TaskSession, name: str) -> Iterator[None]:
    """A call that fails is the candidate's verdict, unless the worker is a baseline."""
    try:
        yield
    except CallFailed as failure:
        if name == "candidate":
            raise
        session.drop_baseline(name, failure.reason)
        raise BaselineFailed(name, failure.reason) from None
