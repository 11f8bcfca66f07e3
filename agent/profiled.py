"""Evaluations with the profiles that a search goes by."""

from collections.abc import Sequence
from typing import Literal

from kernelwright.kernelbench.candidates import reference_candidate
from kernelwright.kernelbench.evaluator import SEARCH, EvaluationPool, LocalEvaluator, Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from kernelwright.kernelbench.speed_of_light import trusted_share
from kernelwright.profiling import ladder
from kernelwright.profiling.counters.time_shares import TimeShares
from kernelwright.profiling.emulated.emulation import Emulation
from kernelwright.profiling.gpu.nsight import NsightCompute
from kernelwright.profiling.records import Profile, RungOutcome
from kernelwright.profiling.rung import Rung, Subject
from kernelwright.profiling.static.kernel_loops import Loops

_ALL = 0.95  # of the time in its own kernels, above which one kernel has all of it
# None but the roofline; those of seconds, of each timed candidate; Nsight Compute too, before advice.
Profilers = Literal["none", "quick", "all"]


class ProfilingPool(EvaluationPool):
    def __init__(
        self,
        evaluator: LocalEvaluator,
        slots: int | None = None,
        profilers: Profilers = "quick",
        parked_bytes: int | None = None,
    ) -> None:
        super().__init__(evaluator, slots, parked_bytes)
        self._profilers = profilers
        self._off: dict[str, RungOutcome] = {}  # profilers that cannot be used on this machine, by name
        self._read: dict[tuple[str, str], Profile] = {}  # by task and candidate, for its next evaluation

    def eager_share(self, task: Task) -> float | None:
        """Time eager and return the share of the roofline that it reaches; None if that is not known.

        Raises TaskError.
        """
        found = self.evaluate(task, reference_candidate(task), Measurement(("eager",), SEARCH))
        return trusted_share(found)

    def profile(
        self,
        task: Task,
        candidate: Candidate,
        evaluation: Evaluation,
        known: Profile | None = None,
        *,
        closely: bool = False,
    ) -> Profile | None:
        """Profile a timed candidate: the roofline, and what takes seconds; `closely`, with Nsight Compute.

        Of several sizes it is profiled at the first. `known`: the profile of this evaluation so far, which is
        extended. What was read of the candidate for an earlier evaluation is not read again, and a
        profiler that has turned out to be of no use on this machine is not asked again.
        """
        if evaluation.timing is None:
            return None
        task, evaluation = task.primary, evaluation.at_first_size
        wanted = self._rungs(Subject(self._evaluator, task, candidate, evaluation), closely)
        key, before = (task.id, candidate.sha256), known and self._tried_again(known)
        if before is not None and not _left(wanted, before):
            self._read[key] = before
            return before
        if before is None and key in self._read:
            before = self._read[key].again()

        def take(evaluator: LocalEvaluator) -> Profile:
            if wanted:
                known = before.model_dump_json() if before is not None else None
                there = evaluator.profiled_there(task, candidate, evaluation, known, closely)
                if there is not None:
                    return Profile.model_validate_json(there)
            return self._profile(Subject(evaluator, task, candidate, evaluation), wanted, before)

        self._read[key] = found = self.ask(task, take, task.id).result()
        return found

    def _profile(self, subject: Subject, wanted: Sequence[Rung], known: Profile | None) -> Profile:
        found = ladder.profile(subject, [rung for rung in wanted if rung.name not in self._off], known)
        unasked = [self._off[rung.name] for rung in _left(wanted, found)]
        for outcome in found.rungs:
            if outcome.for_all:
                self._off[outcome.name] = outcome.model_copy(update={"seconds": 0.0})
        return found.model_copy(update={"rungs": (*found.rungs, *unasked)})

    def _tried_again(self, known: Profile) -> Profile:
        """Leave out the profilers that were of no use when the run was begun, and may be since it went on."""
        rungs = tuple(rung for rung in known.rungs if not rung.for_all or rung.name in self._off)
        return known.model_copy(update={"rungs": rungs})

    def _rungs(self, subject: Subject, closely: bool) -> list[Rung]:
        """Return the profilers that say something about this candidate."""
        candidate = subject.candidate
        if self._profilers == "none":
            return []
        rungs: list[Rung] = []
        if subject.on_cpu:
            share = subject.evaluation.own_kernel_share or 0.0
            rungs += [Loops()] if candidate.language == "cpp" else []
            rungs += [] if len(candidate.kernels) == 1 and share > _ALL else [TimeShares()]
        elif subject.evaluation.verdict is Verdict.correct:
            rungs += ladder.ON_GPU
            rungs += [NsightCompute()] if closely and self._profilers == "all" else []
        if subject.evaluator.emulating is not None and candidate.language == "cuda":  # which has built it
            rungs.append(Emulation())
        return rungs


def _left(wanted: Sequence[Rung], known: Profile) -> list[Rung]:
    """Return the profilers that have not been asked."""
    asked = {rung.name for rung in known.rungs}
    return [rung for rung in wanted if rung.name not in asked]
