"""Facts that a model is told of a task: hardware, least work, where eager spends its time, what was tried.

For a softmax of (4096, 8192) float32 on an H100, after two rounds:

    - A call must read and write 268.4 MB at least: 89.5 us at the measured 3000 GB/s.
    - Eager takes 152 us, torch.compile 97.1 us. ...

    | share of eager's time | operator | calls | MB | GFLOP |
    | 98% | aten._softmax(float32[4096, 8192], -1, False) -> float32[4096, 8192] | 1 | 268.4 | |

    | round | idea | result | us a call | speedup over eager |
    | 0 | builtin | correct | 101 | 1.50 |
    | 1 | row in registers, 16-byte loads | correct | 95.2 | 1.60 |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.chips import cards
from kernelwright.kernelbench.languages import GPU_LANGUAGES, LANGUAGES
from kernelwright.kernelbench.records import (
    Language,
    OperatorCost,
    Precision,
    ProductPrecision,
    Target,
    Task,
    Verdict,
    Work,
)

_ELSEWHERE = {
    "triton": (
        "no such GPU is available here: files run in Triton's interpreter, and are built for these chips",
    ),
    "cuda": (
        "no such GPU is available here: files are checked in emulation, and built for these chips",
        "emulation has no inline PTX, wmma, mma or asynchronous copies: a file that uses them has no result",
    ),
}
_TYPICAL = "sm_90"  # whose published peaks stand for a GPU that is not at hand, if it is built for
_MOST_OPERATORS = 20
_MOST_TRIED = 40  # rows
_MOST_IDEA, _MOST_REASON = 100, 80  # characters


@dataclass(frozen=True)
class Situation:
    """Facts about a task, its machine and its work, for both roles."""

    task: Task
    target: Target
    work: Work
    lessons: tuple[str, ...] = ()  # measured effects of techniques on other tasks' kernels

    def elsewhere(self, language: Language) -> bool:
        """Return True if kernels are for a GPU, and none is at hand."""
        return self.target.device == "cpu" and language in GPU_LANGUAGES

    def hardware(self, language: Language) -> list[str]:
        """Describe the machine that kernels are timed on, or the GPUs that they are written for."""
        target, mark = self.target, self.target.fingerprint
        if self.elsewhere(language):
            chips = [chip for chip in target.chips if chip in cards.CARDS]
            return [*(cards.described(chip) for chip in chips), *_elsewhere(language)]
        cache = f"last-level cache of {mark.last_level_cache_bytes >> 20} MiB"
        on_cpu = target.device == "cpu"
        chip = f"{mark.chip}, {mark.threads} threads, {cache}" if on_cpu else f"{mark.chip}, {cache}"
        software = f"torch {mark.torch}, {mark.compiler}"
        ceilings = target.ceilings
        rates = (
            ("memory is copied at", ceilings.copy_bytes_s, "B/s"),
            ("data in the cache at", ceilings.cached_copy_bytes_s, "B/s"),
            *(self._peak(precision) for precision in self.work.products or (self.task.product_precision,)),
        )
        measured = ", ".join(f"{what} {_scaled(rate)}{unit}" for what, rate, unit in rates if rate)
        return [chip, *target.hardware, software, f"measured: {measured or 'nothing'}"]

    def _peak(self, precision: ProductPrecision | None) -> tuple[str, float | None, str]:
        """Return what is said of the ceiling of products, and its rate."""
        way = self.target.ceilings.fastest(precision)
        otherwise = f", computed in {way}," if way != precision else ""
        what = f"a large {precision or 'untyped'} product{otherwise} runs at"
        return what, self.target.ceilings.flops_s(precision), "FLOP/s"

    def goal(self, language: Language, history: Sequence[Attempt]) -> list[str]:
        """Say what a call must move and compute, what that takes at least, and what PyTorch takes."""
        work, ceilings = self.work, self.target.ceilings
        if self.elsewhere(language):
            copy_s, products_s, whose = self._published()
        else:
            copy_s, products_s, whose = (
                work.copy_s(ceilings),
                work.products_s(ceilings),
                "at the measured rates",
            )
        where = f" at {self.task.workload[0]}" if self.task.workload else ""
        lines = [
            f"Precision of the tensors: {_in_words(self.task.effective_precision)}.",
            f"A call{where} must read and write {work.moved_bytes / 1e6:.4g} MB at least"
            f"{_least(copy_s, whose)}.",
        ]
        if work.flops:
            kinds = ", ".join(f"{flops / 1e9:.4g} in {name}" for name, flops in work.products.items())
            typed = f" ({kinds})" if len(work.products) > 1 else ""
            lines.append(
                f"Its matrix products and convolutions are {work.flops / 1e9:.4g} GFLOP{typed}"
                f"{_least(products_s, whose)}."
            )
        if (times := _baselines(history)) and not self.elsewhere(language):
            of_all = ", on average over all sizes" if self.task.workload else ""
            said = "; ".join(f"{name} takes {us:.4g} us" for name, us in times.items())
            lines.append(f"{said} a call{of_all}.")
        return lines

    def _published(self) -> tuple[float | None, float | None, str]:
        """Return the least seconds by the published peaks of a chip that is built for, and its name."""
        chip = _TYPICAL if _TYPICAL in self.target.chips else next(iter(self.target.chips), _TYPICAL)
        card = cards.CARDS.get(chip)
        if card is None or card.bytes_s is None:
            return None, None, ""
        flops = self.work.products or {"fp32": self.work.flops}
        products_s = sum(amount / card.peaks[name] for name, amount in flops.items() if name in card.peaks)
        return self.work.moved_bytes / card.bytes_s, products_s, f"at the published peaks of {chip}"


def _elsewhere(language: Language) -> tuple[str, ...]:
    row = LANGUAGES[language]
    treated = f"files run {row.here}" if row.here else f"{row.title} kernels are {row.without_gpu}"
    return _ELSEWHERE.get(language, (f"no such GPU is available here: {treated}",))


# Of a task where so many attempts are known, in this language.
Situations = Callable[[Task, int, Language], Situation]


def operators_table(history: Sequence[Attempt]) -> str:
    """Return eager's operators, as an evaluation of this history has told them; "" if none has."""
    costs = next((a.evaluation.operators for a in history if a.evaluation.operators), ())
    if not costs:
        return ""
    total_s = sum(cost.seconds or 0.0 for cost in costs)
    timed = total_s > 0
    rows = [_operator(cost, total_s) for cost in costs[:_MOST_OPERATORS]]
    if left := costs[_MOST_OPERATORS:]:
        rest = OperatorCost(
            signature=f"{len(left)} other operators",
            calls=sum(cost.calls for cost in left),
            bytes=sum(cost.bytes for cost in left),
            flops=sum(cost.flops for cost in left),
            seconds=sum(cost.seconds or 0.0 for cost in left) if timed else None,
        )
        rows.append(_operator(rest, total_s))
    head = (["share of eager's time"] if timed else []) + ["operator", "calls", "MB", "GFLOP"]
    return _table(head, [row if timed else row[1:] for row in rows])


def _operator(cost: OperatorCost, total_s: float) -> list[str]:
    share = f"{(cost.seconds or 0.0) / total_s:.0%}" if total_s > 0 else ""
    flops = f"{cost.flops / 1e9:.3g}" if cost.flops else ""
    return [share, f"`{cost.signature}`", str(cost.calls), f"{cost.bytes / 1e6:.4g}", flops]


def tried_table(history: Sequence[Attempt]) -> str:
    """Return all attempts with a file, a row each; "" if there are none."""
    files = ((number, attempt) for number, attempt in enumerate(history) if attempt.candidate.usable)
    rows = [_attempt(number, attempt) for number, attempt in files]
    if len(rows) > _MOST_TRIED:
        rows = [*rows[: _MOST_TRIED // 4], ["…"] * 5, *rows[-(_MOST_TRIED * 3 // 4) :]]
    return _table(["round", "idea", "result", "us a call", "speedup over eager"], rows) if rows else ""


def _attempt(number: int, attempt: Attempt) -> list[str]:
    candidate, evaluation, advice = attempt.candidate, attempt.evaluation, attempt.advice
    idea = candidate.idea or (advice.method if advice is not None else "") or candidate.author
    if candidate.origin == "repair":
        idea = f"repair of: {candidate.idea}" if candidate.idea else "repair"
    time_us = speedup = ""
    if evaluation.verdict is Verdict.correct:
        result = "correct"
        if evaluation.timing is not None:
            time_us = f"{evaluation.timing.candidate_us.median:.4g}"
        if evaluation.speedup is not None and evaluation.speedup.eager is not None:
            speedup = f"{evaluation.speedup.eager.median:.3g}"
    elif evaluation.only_checked:
        result = "right, not timed"
    else:
        result = f"{evaluation.verdict}: {_line(evaluation.reason, _MOST_REASON)}"
    return [str(number), _line(idea, _MOST_IDEA), result, time_us, speedup]


def _line(text: str, most: int) -> str:
    """Return the beginning of a text as a cell of a table."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _baselines(history: Sequence[Attempt]) -> dict[str, float]:
    """Return the latest microseconds of PyTorch's own ways to run the task."""
    found: dict[str, float] = {}
    for attempt in history:
        timing = attempt.evaluation.timing
        for name, interval in () if timing is None else (
            ("eager", timing.eager_us),
            ("torch.compile", timing.compile_us),
            ("torch.compile (max-autotune)", timing.max_autotune_us),
            ("a CUDA graph of eager", timing.cuda_graphs_us),
        ):  # fmt: skip
            if interval is not None:
                found[name] = interval.median
    return found


def _scaled(rate: float) -> str:
    """Format a rate in units of 10^9 or 10^12: `20 G`, `989 T`."""
    return f"{rate / 1e12:.4g} T" if rate >= 1e13 else f"{rate / 1e9:.4g} G"


def _least(seconds: float | None, whose: str) -> str:
    """Format a least time; empty if it is unknown."""
    if seconds is None:
        return ""
    return f": {1e6 * seconds:.4g} us {whose}" if seconds < 1e-2 else f": {1e3 * seconds:.4g} ms {whose}"


def _in_words(precision: Precision) -> str:
    return "each its own" if precision is Precision.task else str(precision)
