"""Measurement of a candidate: alternating blocks on the referee's clock, the outputs of each looked at.

A call of eager takes 12 ms, so N = 5 calls make a block of at least 50 ms (`Protocol.block_s`). One round of
the candidate and two baselines, in an order drawn for their process:

    phase 0    candidate 5 calls, eager 5, compile 5       all on the same 5 inputs, made when all are stopped
    phase 1    compile 10 calls, eager 10, candidate 10    all on the same 10 inputs, in the reverse order
    alone      candidate and eager, 1 to 3 blocks of one call each
    empty      eager, 3 blocks of no calls

A phase gives one ratio of times for each baseline, in which a drift of the machine cancels; the reverse order
has each worker go first as often as last, and the next round begins with the second worker. Blocks of two
lengths show what a block costs once, apart from its calls (`timing/statistics.py`). With effort "full" there
are 12 rounds, 3 in each of 4 processes, so 24 ratios; more processes follow while the interval is wider than
2% to either side.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from kernelwright.kernelbench.evaluator.block import Block, PrematureLaunch
from kernelwright.kernelbench.evaluator.correctness.oracle_client import OutputSample
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.evaluator.protocol import Effort
from kernelwright.kernelbench.evaluator.refusal import BaselineFailed, CallFailed, Refused
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.evaluator.timing.statistics import TimedBlock, Timings
from kernelwright.kernelbench.evaluator.verification import describe
from kernelwright.kernelbench.records import Verdict

Measured = TypeVar("Measured")
_CHANCE = secrets.SystemRandom()
# Chosen by hand, but for _BETWEEN_PROCESSES.
_MOST_PREMATURE = 3  # attempts at a phase in which something runs before it was asked for
_SLOW = 4.0  # multiple of eager's time from which blocks are shorter and processes fewer
_LOADING = 0.2  # share of the time for timing that loading new processes may take
_SERVED_S = 0.25  # seconds in which N calls arrive, at most, where they arrive one by one
_BETWEEN_PROCESSES = 0.02  # relative difference between processes: 2% for mlp (docs/LOG.md, 2026-11-22)
_ALONE = 8  # blocks of one call in a round, on average
_EMPTY = 3  # blocks of no calls in a round
_CHECKED_FAMILIES = ("task", "dominated", "zero_centred", "heavy_tailed")
_UNSEEN = "perturbed"  # what differs from the task's own inputs in a few elements only


def measure(
    session: TaskSession,
    candidate: Worker,
    reloaded: Callable[[], Worker],
    baselines: Mapping[str, Worker],
    effort: Effort,
    to_beat: float | None = None,
) -> Timings:
    """Time the candidate and the baselines ("eager" among them) in alternation, round by round.

    The rounds are spread over processes of the candidate and of eager: first `candidate`, which has been
    verified, then those of `reloaded`. Loading may take a fifth of the time that timing may. Within a round
    every worker gets the same never-seen inputs: N calls each in one order, then 2N calls each in the reverse
    order, and candidate and eager some calls that come alone. The inputs of a phase are drawn when all
    workers are stopped. After each phase a part of one output is compared with eager's; in some rounds,
    chosen in secret, one call is compared with float64 too, in one of them on inputs that no sample
    distinguishes from the task's own. A candidate that runs out of memory in a block is timed in shorter
    ones. No more is timed than the effort begins with once it is clear whether the speedup over eager is more
    or less than `to_beat`.

    Where the protocol has calls arrive one by one, a phase is 1 to 3N/2 of them, each after a random pause.
    Only the last call's outputs can still be compared; inputs are drawn just before their call, so that
    nobody can know which that will be.

    Raises Refused when the candidate fails or its outputs are not what they must be, BaselineFailed when a
    baseline fails.
    """
    protocol = session.protocol
    calls = max(1, round(effort.block_share * session.calls))
    if protocol.arrivals_per_s is not None:
        calls = max(1, min(calls, int(protocol.arrivals_per_s * _SERVED_S)))
    with contextlib.ExitStack() as reloads:
        while True:
            try:
                return _measured(session, candidate, reloaded, baselines, effort, to_beat, calls)
            except CallFailed as failure:
                if not failure.memory or calls == 1:
                    raise
            # Outputs that are kept split the pieces that temporaries were in: fewer calls need less memory.
            calls //= 2
            if session.one_process:
                candidate.close()
            candidate = reloads.enter_context(reloaded())


def _measured(
    session: TaskSession,
    candidate: Worker,
    reloaded: Callable[[], Worker],
    baselines: Mapping[str, Worker],
    effort: Effort,
    to_beat: float | None,
    calls: int,
) -> Timings:
    """`measure` with blocks of `calls` and of twice as many."""
    protocol = session.protocol
    if session.oracle.unvaried or session.oracle.needs_inputs:  # slots are zero until something is drawn
        session.oracle.fill(range(session.slots))
    session.synchronize(candidate, session.call_limit_s)  # and what other slots have launched
    started, done = time.monotonic(), 0
    with _blamed(session, "eager"):
        overhead_s, launch_s = session.overhead_s()
    blocks: dict[str, list[TimedBlock]] = {name: [] for name in ("candidate", *baselines)}
    timings = Timings(blocks, [], [], {"candidate": [], "eager": []}, overhead_s, launch_s)
    rounds = effort.rounds
    most_processes = min(effort.most_processes, 1 + int(_LOADING * effort.timing_s / candidate.load_s))
    most_processes = 1 if session.one_process else most_processes
    processes = min(effort.processes, most_processes, rounds)
    share = -(-rounds // processes)
    fewest = min(protocol.min_rounds, rounds)
    # Verified even when time runs short: on any family, and on what no sample of the inputs shows.
    surely, *unseen = _CHANCE.sample(range(fewest), min(3, fewest)) if fewest > 1 else (0, 0)
    further = max(0, protocol.verified_blocks - 1) / rounds

    def enough() -> bool:
        return timings.half_width <= effort.half_width or _decided(timings, to_beat)

    number = 0
    while number < most_processes:
        renewed = contextlib.nullcontext(candidate) if number == 0 else _renewed(session, reloaded)
        with renewed as worker:
            workers = {"candidate": worker, **baselines, "eager": session.eager()}
            names = _CHANCE.sample(list(workers), len(workers))
            slowdown = _warm_up(session, workers, 1)
            if number == 0 and slowdown > _SLOW:  # or the machine was busy for one call
                slowdown = min(slowdown, _warm_up(session, workers, 1))
            if number == 0 and slowdown > _SLOW:  # a few long calls say as much as many
                calls, share = max(1, int(calls / slowdown)), min(rounds, protocol.min_rounds)
                processes = most_processes = 1
            _warm_up(session, workers, calls)
            _warm_up(session, workers, min(2 * calls, session.most_calls))
            begun = done
            while done < begun + share or (done < begun + effort.most_rounds and not enough()):
                check = _checked_family(session) if done == surely or _CHANCE.random() < further else None
                check = _UNSEEN if done in unseen else check
                _round(session, workers, names, calls, check, timings, number)
                done += 1
                names.append(names.pop(0))
                if time.monotonic() - started > effort.timing_s and done >= protocol.min_rounds:
                    return timings
        number += 1
        if number >= processes and enough():
            break
    return timings


def _decided(timings: Timings, to_beat: float | None) -> bool:
    speedup = timings.speedup("eager")
    aside = 1 + _BETWEEN_PROCESSES
    return to_beat is not None and not speedup.low / aside <= to_beat <= speedup.high * aside


def _renewed(session: TaskSession, reloaded: Callable[[], Worker]) -> Worker:
    """Return the candidate in a new process.

    Eager is in one, too, started before or after, the old one gone.
    """
    session.end_eager()
    if _CHANCE.random() < 0.5:
        session.eager()
    return reloaded()


def _round(
    session: TaskSession,
    workers: Mapping[str, Worker],
    names: Sequence[str],
    calls: int,
    check: str | None,
    timings: Timings,
    process: int,
) -> None:
    """Two phases, calls that come alone and empty blocks; adds what they took to `timings`.

    `check`: the family of inputs that one call has and is verified on, if any.
    """
    rate = session.protocol.arrivals_per_s
    room = min(2 * calls, session.most_calls)
    counts = [calls, room]
    if rate is not None:
        counts = [_CHANCE.randint(1, 3 * calls // 2) for _ in range(2)]
    # One of the two phases, or the calls that come alone.
    checked = secrets.choice((0, 1, None) if rate is None else (0, 1)) if check else -1
    for phase, order in enumerate((names, names[::-1])):
        mine = _CHANCE.sample(range(session.slots * calls // session.calls), counts[phase])
        timings.processes.append(process)
        special = check if phase == checked else None
        once = partial(_phase, session, workers, order, mine, room, check=special)
        for name, block in _repeated(session, workers["candidate"], once).items():
            timed = TimedBlock(len(mine), block.seconds, block.waited_s, block.messages, block.device_s)
            timings.blocks[name].append(timed)
    if rate is not None:
        time.sleep(1 / rate)
    else:
        few = max(1, min(_ALONE, calls // 2))
        count = _CHANCE.randint(1, 2 * few - 1)
        alone = partial(_alone, session, workers, count, check if checked is None else None)
        for name, seconds in _repeated(session, workers["candidate"], alone).items():
            timings.alone_s[name].extend(seconds)
    with _blamed(session, "eager"):
        for _ in range(_EMPTY):
            timings.empty_s.append(session.run(workers["eager"], [], [], flush=False).seconds)


def _warm_up(session: TaskSession, workers: Mapping[str, Worker], calls: int) -> float:
    """Run each worker on the present inputs; return how many times slower than eager the candidate was."""
    seconds = {}
    for name, worker in _CHANCE.sample(list(workers.items()), len(workers)):
        with _blamed(session, name):
            session.prepare(worker, calls)
            seeds = session.oracle.call_seeds(calls)
            seconds[name] = session.run(worker, range(calls), seeds, whole=()).seconds
    return seconds["candidate"] / seconds["eager"]


def _repeated(
    session: TaskSession, candidate: Worker, phase: Callable[[], dict[str, Measured]]
) -> dict[str, Measured]:
    """Return the result of a phase, repeated with new inputs if something ran before it was asked for.

    That happens when other processes use the device, or by a hiccup. Where it does again and again for the
    candidate alone, its kernels wait for the inputs: then raises Refused.
    """
    premature: list[Worker] = []
    while len(premature) < _MOST_PREMATURE:
        try:
            return phase()
        except PrematureLaunch as launch:
            premature.append(launch.worker)
            session.synchronize(candidate)
    if all(worker is candidate for worker in premature):
        raise Refused(Verdict.cheating, "its kernels run before it is asked, as soon as it has inputs")
    raise session.not_alone()


def _phase(
    session: TaskSession,
    workers: Mapping[str, Worker],
    order: Sequence[str],
    slots: Sequence[int],
    room: int,
    check: str | None,
) -> dict[str, Block]:
    """Every worker's block on the same fresh inputs; a call of family `check` is verified against float64.

    Workers have memory for the outputs of `room` calls.

    Raises PrematureLaunch, as `TaskSession.run` does.
    """
    for name in order:
        with _blamed(session, name):
            session.prepare(workers[name], room)
    rate = session.protocol.arrivals_per_s
    seeds = session.oracle.call_seeds(len(slots))
    kept = slots if rate is None else slots[-1:]  # the calls whose outputs will be there
    secret = secrets.randbelow(len(kept))
    special = {kept[secret]: check} if check else {}
    # Its inputs may be of another family, and it is verified.
    sample = session.oracle.sample(len(kept), but=secret if check else None)
    compared = {"candidate": ([secret] if check else [], sample), "eager": ([], sample)}
    run = partial(_run, session, workers, compared)
    blocks: dict[str, Block] = {}
    if rate is None:
        _fill(session, slots, special)
        for name in order:
            blocks[name] = run(name, slots, seeds)
    else:
        for slot, seed in zip(slots, seeds, strict=True):
            _fill(session, [slot], special)
            for name in order:
                time.sleep(_CHANCE.expovariate(rate))
                block = run(name, [slot], [seed])
                blocks[name] = blocks[name].followed_by(block) if name in blocks else block
    if check:
        _verify(session, workers["candidate"], blocks["candidate"], kept, secret, seeds[secret - len(kept)])
    _compare(session, workers, blocks, sample)
    return blocks


def _run(
    session: TaskSession,
    workers: Mapping[str, Worker],
    compared: Mapping[str, tuple[Sequence[int], OutputSample | None]],
    name: str,
    slots: Sequence[int],
    seeds: Sequence[int | None],
    flush: bool = True,
) -> Block:
    """Run a timed block of a worker; `compared`: the calls, and the part, of whose outputs will be."""
    whole, part = compared.get(name, ((), None))
    with _blamed(session, name):
        return session.run(workers[name], slots, seeds, strict=True, flush=flush, whole=whole, part=part)


def _alone(
    session: TaskSession, workers: Mapping[str, Worker], calls: int, check: str | None
) -> dict[str, list[float]]:
    """Seconds of `calls` blocks of one call, of candidate and eager on the same fresh inputs.

    An input is drawn just before its call, and every call is checked: else leaving out a few of them would
    pass for fast. Caches are not flushed: between the calls of a block they are not either.

    Raises PrematureLaunch, as `TaskSession.run` does.
    """
    names = _CHANCE.sample(("candidate", "eager"), 2)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    blocks: dict[str, Block] = {}
    for name in names:
        with _blamed(session, name):
            session.prepare(workers[name], 1)
    seeds = session.oracle.call_seeds(calls)
    for number, seed in enumerate(seeds):
        slots = [_CHANCE.randrange(session.slots)]
        special = {slots[0]: check} if check and number == calls - 1 else {}
        _fill(session, slots, special)
        sample = None if special else session.oracle.sample(1)
        compared = {"candidate": ([0] if special else [], sample), "eager": ([], sample)}
        for name in names:
            blocks[name] = _run(session, workers, compared, name, slots, [seed], flush=False)
            seconds[name].append(blocks[name].seconds)
        names.reverse()
        if special:
            _verify(session, workers["candidate"], blocks["candidate"], slots, 0, seed)
        _compare(session, workers, blocks, sample)
    return seconds


def _verify(
    session: TaskSession,
    candidate: Worker,
    block: Block,
    slots: Sequence[int],
    call: int,
    seed: int | None,
) -> None:
    """Hold one call of the candidate's block, on `slots`, against float64. Raises Refused."""
    session.check_inputs(candidate, slots)
    expected = session.oracle.expect(slots[call], seed)
    result = session.oracle.compare(candidate, block.outputs, call)
    if expected["usable"] and not (result.within_budget or result.doubtful):
        raise Refused(Verdict.cheating, f"right when verified, wrong when timed: {describe(result)}")


def _compare(
    session: TaskSession,
    workers: Mapping[str, Worker],
    blocks: Mapping[str, Block],
    sample: OutputSample | None,
) -> None:
    """Hold a sample of the candidate's outputs, if there is one, against eager's. Raises Refused."""
    candidate, eager = workers["candidate"], workers["eager"]
    ours, theirs = blocks["candidate"].outputs, blocks["eager"].outputs
    if sample is not None and not session.oracle.agrees(candidate, ours, eager, theirs, sample):
        raise Refused(
            Verdict.cheating, "right when verified; when timed, its outputs are not those of the reference"
        )


def _checked_family(session: TaskSession) -> str:
    """Family of a call that is verified in secret: one of these, or of the task's own."""
    return secrets.choice((*_CHECKED_FAMILIES, *session.oracle.families))


def _fill(session: TaskSession, slots: Sequence[int], special: Mapping[int, str]) -> None:
    """Fresh inputs of the task's own distribution, or of the family that is named for a slot."""
    session.oracle.fill(slots)
    for slot in slots:
        if slot in special:
            session.oracle.fill([slot], special[slot])


@contextlib.contextmanager
def _blamed(session: TaskSession, name: str) -> Iterator[None]:
    """Blame a call that fails on the candidate, unless the worker is a baseline."""
    try:
        yield
    except CallFailed as failure:
        if name == "candidate":
            raise
        session.drop_baseline(name, failure.reason)
        raise BaselineFailed(name, failure.reason, failure.memory) from None
