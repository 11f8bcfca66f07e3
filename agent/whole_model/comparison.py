"""A step of a model as it is against one with drop-ins, in one worker, timed from outside by turns.

The clock is this process's: a kernel cannot change it. Blocks of steps alternate, and the ratio of
neighbours is what counts, so what slows the machine down slows both.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.records import ResultDeviation, StepComparison, StepTimes
from kernelwright.kernelbench.errors import KernelwrightError, UsageError
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits
from kernelwright.kernelbench.evaluator.timing.statistics import interval
from kernelwright.kernelbench.machine import cache_folder, usable_cpus
from kernelwright.kernelbench.modules.worker import refused

_TIMEOUT_S = 1800.0
_BLOCK_S = 0.1  # of a block of steps, about
_PAIRS, _MOST_PAIRS = 15, 60  # of blocks: more than the first until the interval is narrow
_NARROW = 1.01  # ratio of an interval's bounds
_SIDES = ("stock", "drop_in")


class StepPair(AbstractContextManager["StepPair"]):
    """The step of a model, and the same with drop-ins, in a worker. Raises UsageError where either fails."""

    def __init__(self, model: ModelName, trains: bool) -> None:
        self._model, self._trains = model, trains
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            pool = opened.enter_context(
                WorkerPool(threads=usable_cpus(), cache=cache_folder(), limits=Limits())
            )
            self._worker = opened.enter_context(pool.start("baseline", f"{__name__}:serve"))
            self._ask("load", model=self._model.to_json(), trains=self._trains)
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def put_in(self, packages: Sequence[Path]) -> dict[str, str]:
        """Put these packages into the second model, in place of those before; return what they replace."""
        replaced = self._ask("put_in", packages=[str(path.resolve()) for path in packages])["replaced"]
        return dict(replaced)

    def times(self, compiled: bool) -> StepTimes:
        """Time both by turns. `compiled`: by torch.compile, which the first calls wait for."""
        counts = {}
        for side in _SIDES:
            self._seconds(side, compiled, 1)
            counts[side] = max(1, round(_BLOCK_S / max(1e-4, self._seconds(side, compiled, 1))))
        seconds: dict[str, list[float]] = {side: [] for side in _SIDES}
        stock, drop_in = seconds.values()
        for pair in range(_MOST_PAIRS):
            for side in _SIDES if pair % 2 else reversed(_SIDES):
                seconds[side].append(self._seconds(side, compiled, counts[side]) / counts[side])
            ratios = [one / other for one, other in zip(stock, drop_in, strict=True)]
            speedup = interval([ratios])
            if pair + 1 >= _PAIRS and speedup.high < _NARROW * speedup.low:
                break
        return StepTimes(stock_s=median(stock), drop_in_s=median(drop_in), speedup=speedup)

    def compared(self, compiled: bool = True) -> StepComparison:
        """Time both, eager and compiled, and compare their memory, outputs and gradients."""
        stock_peak, drop_in_peak = self.peaks()
        return StepComparison(
            eager=self.times(compiled=False),
            compiled=self.times(compiled=True) if compiled else None,
            stock_peak_bytes=stock_peak,
            drop_in_peak_bytes=drop_in_peak,
            deviations=self.deviations(),
        )

    def peaks(self) -> tuple[int, int]:
        """Return the most bytes of memory that a step has at a time, of either, beside the weights."""
        stock, drop_in = (int(self._ask("peak", side=side)["bytes"]) for side in _SIDES)
        return stock, drop_in

    def deviations(self) -> tuple[ResultDeviation, ...]:
        """Return how far outputs, or the loss and gradients, are from those in float64."""
        return tuple(ResultDeviation(**each) for each in self._ask("deviations")["deviations"])

    def _seconds(self, side: str, compiled: bool, steps: int) -> float:
        began = time.perf_counter()
        self._ask("steps", side=side, compiled=compiled, steps=steps)
        return time.perf_counter() - began

    def _ask(self, what: str, **more: Any) -> dict[str, Any]:
        try:
            answer = json.loads(self._worker.request({"do": what, **more}, _TIMEOUT_S))
        except (WorkerDied, WorkerTimeout) as error:
            raise UsageError(
                f"{self._model} ended the process that ran it: {error}", "try a smaller batch or fewer layers"
            ) from None
        if "message" in answer:
            raise UsageError(answer["message"], answer["fix"])
        return dict(answer)


def serve(channel: Channel) -> None:
    """Worker entry: a model's step, with and without drop-ins."""
    from kernelwright.agent.whole_model.two_steps import TwoSteps

    steps = TwoSteps()
    answers: dict[str, Callable[..., dict[str, Any]]] = {
        "load": steps.load,
        "put_in": steps.put_in,
        "steps": steps.run,
        "peak": steps.peak,
        "deviations": steps.deviations,
    }
    while True:
        asked, _ = channel.receive_json()
        what = asked.pop("do")
        try:
            channel.send_json(answers[what](**asked))
        except KernelwrightError as error:
            channel.send_json(refused(error))
