"""The builtin coder in a run: it takes its turns in the evaluation slots, whose cores it computes on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kernelwright.agent.profiled import ProfilingPool
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tracing import FreeTracer, trace
from kernelwright.agent.tuner.advise import fallback_advice
from kernelwright.agent.tuner.by_size import second
from kernelwright.kernelbench.evaluator import LocalEvaluator
from kernelwright.kernelbench.records import Advice, Candidate, Language, Size, Task

if TYPE_CHECKING:
    from kernelwright.agent.builtin.ir.graph import Graph
    from kernelwright.agent.builtin.sizes.free import FreeGraph
    from kernelwright.agent.tuner.policy.space import ScheduleSpace


@dataclass
class PooledBuiltinCoder:
    pool: ProfilingPool
    language: Language
    _graphs: dict[str, "Graph | FreeGraph"] = field(default_factory=dict)  # by task; a trace takes seconds

    def propose(
        self,
        task: Task,
        history: Sequence[Attempt],
        advice: Advice | None,
        sample: int = 0,
        afresh: bool = False,
    ) -> Candidate:
        own = [attempt for attempt in history if attempt.candidate.author == "builtin"]
        return self.pool.ask(task, partial(self._propose, task, own, advice, sample), task.id).result()

    def fallback(self, task: Task, history: Sequence[Attempt], best: Attempt) -> Candidate | None:
        """Return the reference if the best is this coder's and certainly slower.

        Else, of a task of several sizes, a file that serves some of them by another candidate, if that pays.
        """
        advice = fallback_advice(best, history) if best.candidate.schedule else None
        if advice is not None:
            return self.propose(task, history, advice)
        if not best.evaluation.sizes:
            return None
        return self.pool.ask(task, partial(self._by_size, task, history, best), task.id).result()

    def _by_size(
        self, task: Task, history: Sequence[Attempt], best: Attempt, evaluator: LocalEvaluator
    ) -> Candidate | None:
        from kernelwright.agent.builtin.frontend.reference import renamed
        from kernelwright.agent.builtin.ir.untraceable import Untraceable
        from kernelwright.agent.builtin.sizes.dispatch import dispatching
        from kernelwright.agent.builtin.sizes.free import FreeGraph

        try:
            graph = self._traced(evaluator, task)
        except Untraceable:
            return None
        if not isinstance(graph, FreeGraph):
            return None
        argument, elements = graph.largest_input([_numbers(task, size) for size in task.workload])
        chosen = second(best, history, elements)
        if chosen is None:
            return None
        other = chosen.candidate
        files = [other.source if other is not None else renamed(task.source), best.candidate.source]
        small, large = files if chosen.below else reversed(files)
        source = dispatching(small, large, argument, chosen.elements)
        if source is None:
            return None
        return Candidate(
            source=source,
            language=best.candidate.language,
            author="builtin",
            parents=(best.candidate.sha256, *([other.sha256] if other is not None else [])),
            kernels=tuple(
                dict.fromkeys((*best.candidate.kernels, *(other.kernels if other is not None else ())))
            ),
        )

    def compiled(self, task: Task) -> str:
        """Return the kernels of the default schedule as text: the passes of each launch, and the file."""
        return self.pool.ask(task, partial(self._compiled, task), task.id).result()

    def _compiled(self, task: Task, evaluator: LocalEvaluator) -> str:
        from kernelwright.agent.builtin.coder import LANGUAGES
        from kernelwright.agent.builtin.dump import text
        from kernelwright.agent.builtin.schedule import Schedule
        from kernelwright.agent.builtin.sizes.blocks import compiled

        candidate = self._propose(task, (), None, 0, evaluator)
        if candidate.language == "torch":
            return candidate.source
        forms: list[str] = []

        def watch(step: str, form: object) -> None:
            if step == "scheduling":
                forms.append(text(form))

        schedule = Schedule.from_dict(candidate.schedule)
        language = LANGUAGES[self.language].for_chip(evaluator.sessions.chip or "")
        compiled(self._graphs[task.sha256], task.source, schedule, language, watch)
        launches = "\n\n".join(forms)
        return f"Its launches:\n{launches}\n\nThe file:\n```python\n{candidate.source.strip()}\n```"

    def _propose(
        self,
        task: Task,
        history: Sequence[Attempt],
        advice: Advice | None,
        sample: int,
        evaluator: LocalEvaluator,
    ) -> Candidate:
        from kernelwright.agent.builtin.coder import BuiltinCoder  # imports torch

        traced, chip = partial(self._traced, evaluator), evaluator.sessions.chip or ""
        return BuiltinCoder(traced, self.language, chip).propose(task, history, advice, sample)

    def _traced(self, evaluator: LocalEvaluator, task: Task) -> "Graph | FreeGraph":
        from kernelwright.agent.builtin.coder import LANGUAGES
        from kernelwright.agent.builtin.sizes.free import trace_free

        if task.sha256 not in self._graphs:
            pool, words = evaluator.sessions.pool, LANGUAGES[self.language].words
            self._graphs[task.sha256] = (
                trace_free(FreeTracer(pool, task.primary), _free(task), words)
                if task.workload
                else trace(pool, task)
            )
        return self._graphs[task.sha256]

    def space(self, task: Task) -> "ScheduleSpace":
        """Return the schedules of a task. Raises Untraceable, for one of several sizes, too."""
        return self.pool.ask(task, partial(self._space, task), task.id).result()

    def _space(self, task: Task, evaluator: LocalEvaluator) -> "ScheduleSpace":
        from kernelwright.agent.builtin.coder import LANGUAGES
        from kernelwright.agent.builtin.ir.graph import Graph
        from kernelwright.agent.builtin.ir.untraceable import Untraceable
        from kernelwright.agent.tuner.policy.space import ScheduleSpace

        graph = self._traced(evaluator, task)
        if not isinstance(graph, Graph):
            raise Untraceable("a policy of schedules knows tasks of one size")
        return ScheduleSpace(graph, task.source, LANGUAGES[self.language])


def _free(task: Task) -> dict[str, int]:
    """Return the axes of a task with their values at its first size. Raises Untraceable."""
    return _numbers(task, task.workload[0])


def _numbers(task: Task, size: Size) -> dict[str, int]:
    """Return a task's axes at one of its sizes. Raises Untraceable."""
    from kernelwright.agent.builtin.ir.untraceable import Untraceable

    for name in task.axes:
        if not size.constants[name].isdecimal():
            raise Untraceable(f"its sizes differ in {name}, which is no positive integer")
    return {name: int(size.constants[name]) for name in task.axes}
