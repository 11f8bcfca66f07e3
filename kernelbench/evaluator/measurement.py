"""How fast is the candidate? Alternating blocks on the judge's clock, some of them verified."""

import secrets
import time
from collections.abc import Mapping

from kernelbench.evaluator.process import Worker
from kernelbench.evaluator.session import Refused, TaskSession
from kernelbench.evaluator.timing import BlockPair, Rounds
from kernelbench.evaluator.verification import describe
from kernelbench.records import Verdict


def measure(session: TaskSession, workers: Mapping[str, Worker], rounds: int) -> Rounds:
    """Time all `workers` ("candidate" and baselines) side by side, round by round.

    Within a round every worker gets the same never-seen inputs: N calls each in one order, then 2N
    calls each in the reverse order. Raises Refused when an output of a timed call of the candidate is
    not what it must be, or a call fails.
    """
    protocol, calls = session.protocol, session.calls
    chosen = secrets.SystemRandom()
    verified = set(chosen.sample(range(rounds), min(protocol.verified_blocks, rounds)))
    verified.add(
        chosen.randrange(min(protocol.min_rounds, rounds))
    )  # one that happens even when time runs short
    pairs: dict[str, list[BlockPair]] = {name: [] for name in workers}
    started = time.monotonic()
    names = list(workers)
    for number in range(rounds):
        session.fill(range(3 * calls))
        check_long = secrets.randbelow(2) == 1
        short = {}
        for name in names:
            check = number in verified and name == "candidate" and not check_long
            short[name] = _block(session, workers[name], range(2 * calls, 3 * calls), check)
        for name in reversed(names):
            check = number in verified and name == "candidate" and check_long
            long = _block(session, workers[name], range(2 * calls), check)
            pairs[name].append(BlockPair(calls, short[name], long))
        names.append(names.pop(0))
        if time.monotonic() - started > protocol.timing_s and number + 1 >= protocol.min_rounds:
            break
    return Rounds(pairs)


def _block(session: TaskSession, worker: Worker, slots: range, check: bool) -> float:
    """Seconds of a block; with `check`, one call chosen in secret is verified afterwards."""
    seeds = session.call_seeds(len(slots))
    position = secrets.randbelow(len(slots))
    fingerprint = session.fingerprint(slots[position]) if check else None
    block = session.run(worker, list(slots), seeds)
    if check:
        if session.fingerprint(slots[position]) != fingerprint:
            raise Refused(Verdict.cheating, "a timed call changed its inputs, calls before did not")
        session.expect(slots[position], seeds[position])
        result = session.compare(worker, block.outputs[position])
        if not result.within_budget:
            raise Refused(Verdict.cheating, f"right when verified, wrong when timed: {describe(result)}")
    return block.seconds
