"""A step of a model as it is against one with drop-ins, in a worker each, timed from outside by turns.

The clock is this process's: a kernel cannot change it. Blocks of steps alternate, and the ratio of
neighbours is what counts, so what slows the machine down slows both. There are two workers because functions
are replaced for a whole process.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.records import ResultDeviation, StepComparison, StepTimes
from kernelwright.kernelbench.errors import KernelwrightError, MissingPrerequisite, UsageError
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker, WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits
from kernelwright.kernelbench.evaluator.timing.statistics import interval
from kernelwright.kernelbench.machine import cache_folder, usable_cpus
from kernelwright.kernelbench.modules.worker import refused
from kernelwright.kernelbench.records import Size

_TIMEOUT_S = 1800.0
_BLOCK_S = 0.1  # of a block of steps, about
_LEAST_PAIRS, _PAIRS, _MOST_PAIRS = 7, 15, 60  # of blocks: with `_PAIRS` a narrow interval will do
_MOST_S = 60.0  # of all blocks, if there are the least
_NARROW = 1.01  # ratio of an interval's bounds
WORKER_PAIRS = 2  # of a comparison: processes differ by a percent or two
_STOCK, _DROP_IN = "stock", "drop_in"


class StepEndedError(UsageError):
    """A step that ended its process, which another time it may not."""


@dataclass(frozen=True)
class StepBlocks:
    """Seconds of a step by size and block, of a model as it is and with drop-ins; blocks are neighbours."""

    stock: Sequence[Sequence[float]]
    drop_in: Sequence[Sequence[float]]


class StepPair(AbstractContextManager["StepPair"]):
    """The step of a model, and the same with drop-ins, in workers. Raises UsageError where either fails."""

    def __init__(self, model: ModelName, trains: bool) -> None:
        self._model, self._trains = model, trains
        self._sizes = model.workload
        self._open = ExitStack()
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            pool = opened.enter_context(
                WorkerPool(threads=usable_cpus(), cache=cache_folder(), limits=Limits())
            )
            for side in (_STOCK, _DROP_IN):
                self._workers[side] = opened.enter_context(pool.start("baseline", f"{__name__}:serve"))
                self._ask(side, "load", model=self._model.to_json(), trains=self._trains)
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def keep_exact(self) -> None:
        """Have both compute their results in float64, as the model is: before anything is put in."""
        for side in (_STOCK, _DROP_IN):
            self._ask(side, "keep_exact")

    def capture(self, place: str, number: int, of_loss: bool = False) -> None:
        """Have both keep the arguments of a call, for `part_blocks`: before anything is put in.

        `of_loss`: those of the loss of the layer's output.
        """
        for side in (_STOCK, _DROP_IN):
            self._ask(side, "capture", place=place, number=number, of_loss=of_loss)

    def put_in(self, package: Path) -> dict[str, str]:
        """Put a package into the second model; return what it replaces."""
        return dict(self._ask(_DROP_IN, "put_in", package=str(package.resolve()))["replaced"])

    def unreached(self) -> str:
        """Return why no kernel computes any call of a step; "" if one does."""
        found = self._ask(_DROP_IN, "calls")
        return "" if found["reached"] else found["why"] or _not_called(found["elsewhere"])

    def blocks(self, compiled: bool) -> StepBlocks:
        """Time both by turns, at all sizes. `compiled`: by torch.compile, which the first calls wait for."""
        return self._blocks("run", compiled=compiled)

    def part_blocks(self) -> StepBlocks:
        """Time the call of `capture` in both by turns, at all sizes."""
        return self._blocks("run_part")

    def _blocks(self, what: str, **how: Any) -> StepBlocks:
        places = range(len(self._sizes))
        block = _BLOCK_S / len(places)
        counts = {
            side: [max(1, round(block / self._warm(side, what, size, how))) for size in places]
            for side in (_STOCK, _DROP_IN)
        }
        began = time.perf_counter()
        seconds: dict[str, list[list[float]]] = {side: [[] for _ in places] for side in counts}
        for pair in range(_MOST_PAIRS):
            for side in (_STOCK, _DROP_IN) if pair % 2 else (_DROP_IN, _STOCK):
                for size in places:
                    count = counts[side][size]
                    seconds[side][size].append(self._seconds(side, what, size, count, how) / count)
            found = StepBlocks(seconds[_STOCK], seconds[_DROP_IN])
            long = time.perf_counter() - began > _MOST_S
            if pair + 1 >= (_LEAST_PAIRS if long else _PAIRS):
                speedup = step_times(self._sizes, [found]).speedup
                if long or speedup.high < _NARROW * speedup.low:
                    break
        return found

    def peaks(self) -> tuple[int, int]:
        """Return the most bytes of memory that a step has at a time, of either, beside the weights."""
        stock, drop_in = (int(self._ask(side, "peak")["bytes"]) for side in (_STOCK, _DROP_IN))
        return stock, drop_in

    def deviations(self) -> tuple[ResultDeviation, ...]:
        """Return how far outputs, or the loss and gradients, are from those of `keep_exact`."""
        stock, drop_in = (self._ask(side, "errors") for side in (_STOCK, _DROP_IN))
        return tuple(
            ResultDeviation(
                name=name,
                size=str(size) if len(self._sizes) > 1 else "",
                stock_error=error,
                drop_in_error=other[name],
                budget=budgets.get(name, math.inf),
            )
            for size, one, other, budgets in zip(
                self._sizes, stock["errors"], drop_in["errors"], stock["budgets"], strict=True
            )
            for name, error in one.items()
        )

    def _warm(self, side: str, what: str, size: int, how: Mapping[str, Any]) -> float:
        """Run it twice; return the seconds of the second, which a call of a worker is part of."""
        self._seconds(side, what, size, 1, how)
        return max(1e-4, self._seconds(side, what, size, 1, how))

    def _seconds(self, side: str, what: str, size: int, steps: int, how: Mapping[str, Any]) -> float:
        began = time.perf_counter()
        self._ask(side, what, size=size, steps=steps, **how)
        return time.perf_counter() - began

    def _ask(self, side: str, what: str, **more: Any) -> dict[str, Any]:
        try:
            answer = json.loads(self._workers[side].request({"do": what, **more}, _TIMEOUT_S))
        except (WorkerDied, WorkerTimeout) as error:
            raise StepEndedError(
                f"{self._model} ended the process that ran it: {error}", "try a smaller batch or fewer layers"
            ) from None
        if "message" in answer:
            kind = MissingPrerequisite if answer["missing"] else UsageError
            raise kind(answer["message"], answer["fix"])
        return dict(answer)


def _not_called(elsewhere: Mapping[str, Sequence[str]]) -> str:
    why = "the step does not call what it replaces"
    others = [f"{path} is also {', '.join(names)}" for path, names in elsewhere.items()]
    return f"{why}: {'; '.join(others)}" if others else why


def compare(model: ModelName, trains: bool, package: Path) -> StepComparison:
    """Compare a model's step as it is and with a package: memory, outputs, gradients and time.

    Raises UsageError where either fails. Where only the compiled step does, or the one in float64, the
    message is in the result.
    """
    deviations, not_exact = _held_against_float64(model, trains, package)
    eager, compiled, not_compiled = [], [], ""
    for _ in range(WORKER_PAIRS):
        with StepPair(model, trains) as pair:
            pair.put_in(package)
            peaks = pair.peaks()
            eager.append(pair.blocks(compiled=False))
            if not not_compiled:
                try:
                    compiled.append(pair.blocks(compiled=True))
                except UsageError as error:
                    not_compiled = error.message
    return StepComparison(
        eager=step_times(model.workload, eager),
        compiled=None if not_compiled else step_times(model.workload, compiled),
        not_compiled=not_compiled,
        not_exact=not_exact,
        stock_peak_bytes=peaks[0],
        drop_in_peak_bytes=peaks[1],
        deviations=deviations,
    )


def _held_against_float64(
    model: ModelName, trains: bool, package: Path
) -> tuple[tuple[ResultDeviation, ...], str]:
    """Return how far results are from those in float64, in workers of their own, or why that is not known."""
    with StepPair(model, trains) as pair:
        try:
            pair.keep_exact()
        except UsageError as error:
            return (), error.message
        pair.put_in(package)
        return pair.deviations(), ""


def step_times(sizes: Sequence[Size], pairs: Sequence[StepBlocks]) -> StepTimes:
    """Return the times of a step over pairs of workers; what differs between these widens the interval."""
    weights = [size.weight for size in sizes]
    found = _times([(_weighted(each.stock, weights), _weighted(each.drop_in, weights)) for each in pairs])
    if len(sizes) == 1:
        return found
    each = {
        str(size): _times([(pair.stock[place], pair.drop_in[place]) for pair in pairs])
        for place, size in enumerate(sizes)
    }
    return found.model_copy(update={"sizes": each})


def _times(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> StepTimes:
    ratios = [[one / other for one, other in zip(stock, drop_in, strict=True)] for stock, drop_in in pairs]
    stock, drop_in = (median(block for pair in pairs for block in pair[side]) for side in (0, 1))
    return StepTimes(stock_s=stock, drop_in_s=drop_in, speedup=interval(ratios))


def _weighted(seconds: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """Return the mean of all sizes by weight, block by block."""
    return [
        sum(weight * one for weight, one in zip(weights, block, strict=True)) / sum(weights)
        for block in zip(*seconds, strict=True)
    ]


def serve(channel: Channel) -> None:
    """Worker entry: a model's step."""
    from kernelwright.agent.whole_model.measured_step import MeasuredStep

    step = MeasuredStep()
    answers: dict[str, Callable[..., dict[str, Any]]] = {
        "load": step.load,
        "keep_exact": step.keep_exact,
        "put_in": step.put_in,
        "calls": step.calls,
        "run": step.run,
        "capture": step.capture,
        "run_part": step.run_part,
        "peak": step.peak,
        "errors": step.errors,
    }
    while True:
        asked, _ = channel.receive_json()
        what = asked.pop("do")
        try:
            channel.send_json(answers[what](**asked))
        except KernelwrightError as error:
            channel.send_json(refused(error))
