"""The lines that a run ends with: what got faster, what did not, where to find it and what to do next."""

import shlex
from collections.abc import Sequence

from kernelwright.results.dropin.winner import best_without_gpu
from kernelwright.results.formatting import headline, with_bounds
from kernelwright.results.report.contents import RunReport
from kernelwright.results.store.folder import RunFolder
from kernelwright.results.summary import TaskSummary

_MOST_NAMED = 8  # tasks in a line; the report has them all


def closing_lines(report: RunReport, folder: RunFolder, complete: bool) -> list[str]:
    """Five lines for the end of a run; `complete`: all its tasks are done."""
    tasks = (*report.summary.tasks, *report.summary.measures_nothing)
    faster = sorted((task for task in tasks if _why_not(task) == ""), key=_median, reverse=True)
    others = [task for task in tasks if _why_not(task) != ""]
    gains = _listed([f"{_name(task, tasks)} {with_bounds(task.counted('eager'))}" for task in faster])
    return [
        f"Faster than eager: {gains}",
        f"Not faster: {_listed([f'{_name(task, tasks)} ({_why_not(task)})' for task in others])}",
        f"Kernels: {_kernels(tasks, report, folder)}",
        f"Report: {folder.report}",
        f"Next: {_next(report, faster, folder, complete)}",
    ]


def _next(report: RunReport, faster: Sequence[TaskSummary], folder: RunFolder, complete: bool) -> str:
    """Return the command that a reader most likely wants, ready to be copied."""
    run = str(folder.path)
    if not complete:
        return shlex.join(["kernelwright", "run", "--resume", run])
    for task in (*faster, *_emulated(report)):
        return shlex.join(["kernelwright", "export", run, task.task, "--out", "kernels"])
    return shlex.join(["kernelwright", "report", run])


def _emulated(report: RunReport) -> list[TaskSummary]:
    """Return tasks with a kernel for a GPU that is right in emulation, where there is no GPU."""
    return [task for task in report.summary.tasks if best_without_gpu(report.attempts.get(task.task, ()))]


def _kernels(tasks: Sequence[TaskSummary], report: RunReport, folder: RunFolder) -> str:
    correct = [task for task in tasks if task.candidate is not None]
    if not correct:
        emulated = len(_emulated(report))
        return f"{emulated} of {len(tasks)} right in emulation, on no GPU" if emulated else "none is correct"
    references = sum(bool(task.submitted) for task in correct)
    where = f"{folder.best('TASK')} for {len(correct)} of {len(tasks)} tasks"
    return f"{where}, {references} of them the reference" if references else where


def _why_not(task: TaskSummary) -> str:
    """Return the reason why a task does not count as faster; empty if it does."""
    if task.measures_nothing_why:
        return "measures nothing"
    speedup = headline(task.counted("eager"))
    match task.outcome:
        case "faster":
            return ""
        case "reference":
            return f"{task.submitted} is faster"
        case "not_correct":
            return str(task.verdict).replace("_", " ")
        case "not_tried" | "not_timed":
            return task.outcome.replace("_", " ")
        case "not_own":
            return f"{speedup}, not known to be by kernels of its own"
    return speedup


def _median(task: TaskSummary) -> float:
    speedup = task.counted("eager")
    return speedup.median if speedup is not None else 0.0


def _name(task: TaskSummary, among: Sequence[TaskSummary]) -> str:
    """Return the last part of a task's id if it is unique among the tasks; else the id."""
    last = task.task.rpartition("/")[2]
    return last if sum(other.task.rpartition("/")[2] == last for other in among) == 1 else task.task


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*names[:_MOST_NAMED], *more])
