"""GPU kernels evaluated where there is no GPU, or before they take its time: all but their speed.

CUDA C++ runs in emulation (`kernelbench.emulate`), Triton in its interpreter: at smaller sizes first, then
at the task's own where that is a matter of a minute, or where the smaller ones say that it is wrong, for a
kernel may be made for one size. And it is built for chips that are named.
"""

import re
from collections.abc import Collection, Sequence

from kernelwright.kernelbench.emulate.findings import RETURNED, KernelFault
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator import emulated
from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.evaluator.protocol import CHECK, EAGER, Measurement
from kernelwright.kernelbench.evaluator.referee import Referee
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.evaluator.workloads import total, worst
from kernelwright.kernelbench.fitting import GIB, fitting
from kernelwright.kernelbench.languages import GPU_LANGUAGES, LANGUAGES
from kernelwright.kernelbench.records import Candidate, Evaluation, Target, Task, Verdict
from kernelwright.kernelbench.sources.smaller import changed, share, smaller
from kernelwright.kernelbench.without_gpu.building import builds

DEFAULT_CHIPS = ("sm_80", "sm_90", "sm_100")
FEW = ("task", "edge")  # families of inputs, that are tried before a GPU takes over
# As torch raises, of a build without CUDA and of a machine without a GPU.
_ASKS_FOR_GPU = re.compile(r"not compiled with CUDA|No CUDA GPUs are available|Found no NVIDIA driver")
_PATIENCE_S = 60.0  # for the task's own sizes
# What a call at the task's own sizes has in memory: the oracle, which keeps families of inputs and computes
# in float64, takes up to twelve times as much.
_MOST_BYTES = GIB // 4
ELSEWHERE = "at smaller sizes"  # so begins the reason of what is wrong at these, where its own were not run


class EmulatedEvaluator(LocalEvaluator):
    """Evaluates GPU kernels on a CPU, as far as that goes, and builds them for `chips`."""

    def __init__(self, referee: Referee, chips: Sequence[str] = DEFAULT_CHIPS) -> None:
        """`referee`: of the CPU. `chips`: "sm_90"; none where nothing is to be built."""
        super().__init__(referee.sessions)
        self._referee, self._chips = referee, tuple(chips)
        self._bytes: dict[str, int] = {}  # of a call, by the task's source

    @property
    def target(self) -> Target:
        return self.sessions.target.model_copy(update={"chips": self._chips})

    def sibling(self, cache: SessionCache | None = None) -> "EmulatedEvaluator":
        return EmulatedEvaluator(self._referee.sibling(cache), self._chips)

    def at_one_size(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation:
        """Return the verdict as far as it goes without a GPU; `unmeasured` where nothing is wrong.

        `measurement` only says whether the reference's operators are listed. Raises TaskError.
        """
        if candidate.language not in GPU_LANGUAGES:
            has = candidate.language
            reason = f"it has no GPU kernel ({has}): compile_cuda, load_inline, load and Triton give one"
            return self.rejected(task, candidate, reason)
        found, expected_s, first = _at_smaller_sizes(self._referee, task, candidate)
        wrong = {sizes: each for sizes, each in found.items() if each.verdict is not Verdict.unmeasured}
        own, why_not = None, ""
        if wrong or not found or expected_s < _PATIENCE_S:
            how = Measurement(("eager",), operators=measurement.operators)
            own, why_not = self._at_own_sizes(task, candidate, how, needed=not found)
        every = [*found.values(), *([own] if own else [])]
        launched = tuple(sorted({kernel for each in every for kernel in each.launched}))
        verdict, reason, checked = _verdict(candidate, found, wrong, own, launched, why_not)
        fits = own or not found or (not why_not and self._call_bytes(task) <= _MOST_BYTES)
        chips = self._chips if LANGUAGES[candidate.language].builds else ()
        made = tuple(builds(self.sessions, task if fits else first, candidate, chips))
        if verdict is Verdict.unmeasured and made and all(build.ok is False for build in made):
            verdict, reason = Verdict.build_error, f"for {made[0].chip}: {made[0].problem}"
        return every[-1].model_copy(
            update={
                "verdict": verdict,
                "reason": reason,
                "correctness": worst(every) if checked else None,
                "launched": launched,
                "stages": total(every),
                "builds": made,
            }
        )

    def checked_on_cpu(self, task: Task, candidate: Candidate) -> Evaluation:
        """Return the verdict on a candidate without GPU kernels, by what it computes on the CPU.

        At smaller sizes first, as kernels are; `unmeasured` where nothing is wrong, and where it asks for a
        GPU. Raises TaskError.
        """
        found, expected_s, _ = _at_smaller_sizes(self._referee, task, candidate, CHECK)
        every = list(found.items())
        where, last = next(
            (each for each in every if each[1].verdict is not Verdict.unmeasured),
            every[-1] if every else ("", None),
        )
        right = last is not None and last.verdict is Verdict.unmeasured
        if last is None or not ((right and expected_s > _PATIENCE_S) or _ASKS_FOR_GPU.search(last.reason)):
            own, why_not = self._at_own_sizes(task, candidate, CHECK, needed=last is None)
            if own is None and last is not None and not right:
                return last.model_copy(update={"reason": _elsewhere(where, last, why_not)})
            last = own or last
        assert last is not None
        if not _ASKS_FOR_GPU.search(last.reason):
            return last
        reason = f"not checked: it asks for a GPU: {last.reason}"
        return last.model_copy(update={"verdict": Verdict.unmeasured, "reason": reason, "correctness": None})

    def _at_own_sizes(
        self, task: Task, candidate: Candidate, measurement: Measurement, needed: bool
    ) -> tuple[Evaluation | None, str]:
        """Evaluate at the task's own sizes, or say why not. Raises TaskError if `needed`, and they fail."""
        try:
            if not needed and (size := self._call_bytes(task)) > _MOST_BYTES:
                return None, f"take {size / GIB:.1f} GiB a call, too much to check here"
            return self._referee.evaluate(task, candidate, measurement), ""
        except TaskError as error:
            if needed:
                raise
            return None, f"cannot be checked here: {error.message}"

    def _call_bytes(self, task: Task) -> int:
        """Return the most bytes that a call of the reference has at a time; 0 where that is not known."""
        if task.source not in self._bytes:
            (fit,) = fitting(self.sessions, [task], _MOST_BYTES)
            sizes = fit.sizes
            parts = (sizes.inputs, *sizes.outputs, sizes.weights, sizes.live) if sizes else ()
            self._bytes[task.source] = sum(parts)
        return self._bytes[task.source]

    def close(self) -> None:
        self._referee.close()


class CheckedFirst(LocalEvaluator):
    """Has CUDA C++ emulated on the CPU before it takes time of the GPU that `evaluator` times on."""

    def __init__(self, evaluator: LocalEvaluator, on_cpu: Referee) -> None:
        super().__init__(evaluator.sessions, emulating=on_cpu.sessions)
        self._evaluator, self._on_cpu = evaluator, on_cpu

    def sibling(self, cache: SessionCache | None = None) -> "CheckedFirst":
        return CheckedFirst(self._evaluator.sibling(cache), self._on_cpu.sibling())

    def at_one_size(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation:
        if candidate.language == "cuda":
            with self.sessions.computing():
                objection = _objection(self._on_cpu, task, candidate)
            if objection is not None:
                here = {"target": self.target, "environment": self.sessions.environment}
                return objection.model_copy(update=here)
        return self._evaluator.evaluate(task, candidate, measurement)

    def abort(self) -> None:
        self._evaluator.abort()
        self._on_cpu.abort()

    def close(self) -> None:
        self._on_cpu.close()
        self._evaluator.close()


def _objection(on_cpu: Referee, task: Task, candidate: Candidate) -> Evaluation | None:
    """Return what emulation has against a candidate that is to run on a GPU; None where it may.

    What is wrong at smaller sizes has to be wrong at the task's own, too, so that a kernel that is made for
    those may run; where emulating them would take long, it may. Raises TaskError.
    """
    found, expected_s, _ = _at_smaller_sizes(on_cpu, task, candidate)
    where = next((sizes for sizes, each in found.items() if holds_on_gpu(each)), "")
    if (found and not where) or expected_s > _PATIENCE_S:
        return None
    own = on_cpu.evaluate(task, candidate, EAGER)
    if not holds_on_gpu(own):
        return None
    also = f" (at {where}, too)" if where else ""
    return own.model_copy(update={"reason": f"not run on the GPU: in emulation{also}, {own.reason}"})


def holds_on_gpu(evaluation: Evaluation) -> bool:
    """Tell whether a GPU would do the same.

    What does not build here, takes too long, is not emulated or asks for a GPU says nothing of one. Chips
    since Volta do not wait at a barrier for threads that have returned, whatever CUDA promises.
    """
    fault = evaluation.reason.startswith(f"{KernelFault.__name__}: ") and RETURNED not in evaluation.reason
    wrong = evaluation.verdict in (Verdict.wrong_output, Verdict.nondeterministic)
    return wrong or (evaluation.verdict is Verdict.runtime_error and fault)


def _at_smaller_sizes(
    referee: Referee, task: Task, candidate: Candidate, measurement: Measurement = EAGER
) -> tuple[dict[str, Evaluation], float, Task]:
    """Return what is found at each, the least seconds that the task's own sizes take, and the first task."""
    found: dict[str, Evaluation] = {}
    expected_s, first = 0.0, task
    for alternatives in smaller(task, LANGUAGES[candidate.language].elements):
        for other in alternatives:
            try:
                evaluation = referee.evaluate(other, candidate, measurement)
            except TaskError:  # the reference is not defined at such sizes
                continue
            first = first if found else other
            found[changed(task, other)] = evaluation
            expected_s = max(expected_s, evaluation.stages.verify_s * share(task, other))
            break
        if found and list(found.values())[-1].correctness is None:
            break  # the task's own sizes decide, or none does
    return found, expected_s, first


def _verdict(
    candidate: Candidate,
    found: dict[str, Evaluation],
    wrong: dict[str, Evaluation],
    own: Evaluation | None,
    launched: Collection[str],
    why_not: str,
) -> tuple[Verdict, str, bool]:
    """Return the verdict, its reason, and whether anything was checked.

    `launched`: at any of the sizes. `why_not`: why it was not run at the task's own.
    """
    if not wrong:
        of = own or next(iter(found.values()))
        if of.correctness is None:
            return of.verdict, of.reason, of.verdict is not Verdict.unmeasured
        sizes = "; ".join([*found, *(["the task's own sizes"] if own else [])])
        said = emulated.reason(candidate, launched)
        return of.verdict, f"{said}. Checked at {sizes}" if found else said, True
    where, first = next(iter(wrong.items()))
    if own is None:
        unbuilt = first.verdict is Verdict.build_error  # which it is at any size
        return first.verdict, first.reason if unbuilt else _elsewhere(where, first, why_not), True
    if own.verdict is Verdict.unmeasured:
        return own.verdict, f"{own.reason}. At {where} it is not: {first.reason}", own.correctness is not None
    if own.verdict is Verdict.timeout and first.verdict is not Verdict.timeout:
        return first.verdict, _elsewhere(where, first, "take too long to emulate"), True
    return own.verdict, own.reason, True


def _elsewhere(where: str, wrong: Evaluation, why_not: str) -> str:
    """Return the reason of a candidate that is wrong at smaller sizes, and not known to be at its own."""
    return f"{ELSEWHERE}, {where}: {wrong.reason}. The task's own sizes {why_not}"
