"""The builtin coder: traces a task, fuses what it can, and renders it under a schedule."""

from collections.abc import Callable, Mapping, Sequence

from kernelwright.agent.builtin.codegen.backend import Language
from kernelwright.agent.builtin.codegen.cpp.backend import Cpp
from kernelwright.agent.builtin.codegen.cuda.backend import Cuda
from kernelwright.agent.builtin.codegen.triton.backend import Triton
from kernelwright.agent.builtin.compile import NothingToFuse
from kernelwright.agent.builtin.frontend import reference
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.agent.builtin.sizes.blocks import compiled
from kernelwright.agent.builtin.sizes.free import FreeGraph
from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.records import Advice, Candidate, Task, Verdict

LANGUAGES: dict[str, Language] = {language.name: language for language in (Cpp(), Triton(), Cuda())}


class BuiltinCoder:
    """`trace` turns a task into its graph, in a sandbox; it raises `Untraceable` where there is none.

    Of a graph with free sizes the kernels serve any of them. `language`: its name, or one with other choices;
    `chip`: of the GPU that they are for, if known.
    """

    author = "builtin"

    def __init__(
        self, trace: Callable[[Task], Graph | FreeGraph], language: str | Language = "cpp", chip: str = ""
    ) -> None:
        self._trace = trace
        named = LANGUAGES[language] if isinstance(language, str) else language
        self._language = named.for_chip(chip)

    def propose(
        self, task: Task, history: Sequence[Attempt], advice: Advice | None, sample: int = 0
    ) -> Candidate:
        """Return the default schedule first; then the one advised, else the best, with knobs changed.

        The same request has the same answer, whatever the `sample`.
        """
        best = _best(history, advice.about if advice is not None else "")
        before = best.candidate.schedule if best else {}
        schedule = Schedule.from_dict({**self._language.defaults, **before})
        if advice is not None:
            schedule = schedule.changed(advice.schedule)
        if schedule.value("kernels") == "none":
            return self._reference(task, "kernels of our own were slower", {"kernels": "none"})
        try:
            graph = self._trace(task)
            rendered = compiled(graph, task.source, schedule, self._language)
        except Untraceable as reason:
            return self._reference(task, str(reason))
        except NothingToFuse as nothing:
            left = " and ".join(path or "forward itself" for path in graph.left)
            rest = f"every operation but {left}, which cannot be traced," if left else "every operation"
            return self._reference(task, f"{rest} is a library call", nothing.choices)
        return Candidate(
            source=rendered.source,
            language=self._language.name if rendered.kernels else "torch",
            author=self.author,
            parents=(best.candidate.sha256,) if best else (),
            advice=advice.plan if advice else "",
            schedule=rendered.schedule.to_dict(),
            kernels=rendered.kernels,
            alternatives=dict(rendered.alternatives),
        )

    def _reference(self, task: Task, reason: str, schedule: Mapping[str, str] | None = None) -> Candidate:
        docstring = f'"""The reference unchanged: {_one_line(reason)}."""\n\n'
        return Candidate(
            source=docstring + reference.renamed(task.source),
            language="torch",
            author=self.author,
            schedule=dict(schedule or {}),
        )


def _best(history: Sequence[Attempt], about: str) -> Attempt | None:
    """Attempt that the advice is about, else the fastest correct one; the first one where none was timed."""
    meant = next((attempt for attempt in history if about and attempt.candidate.sha256 == about), None)
    if meant is not None:
        return meant
    timed = [
        a for a in history if a.evaluation.verdict == Verdict.correct and a.evaluation.timing is not None
    ]
    if timed:
        return min(
            timed, key=lambda a: a.evaluation.timing.candidate_us.median if a.evaluation.timing else 0.0
        )
    return history[0] if history else None


def _one_line(text: str) -> str:
    return " ".join(text.replace('"', "'").replace("\\", "/").split()).rstrip(".")
