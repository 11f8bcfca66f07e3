"""Files of a run folder that are made from its database, and can be made again at any time."""

from kernelwright.results.deliverable import submitted, with_baseline
from kernelwright.results.function_file import function_text
from kernelwright.results.report.contents import RunReport
from kernelwright.results.report.formats import ReportFormat, render
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder
from kernelwright.results.summary import Summary, best_attempt


def write_outputs(folder: RunFolder, database: RunDatabase) -> Summary:
    """Write summary.json, report.html and best/<task>.py, the last for tasks with a correct kernel.

    Tasks that were written for a module are in tasks/<task>.py. If a baseline is faster, best/<task>.py holds
    that, and best/<task>.kernel.py the kernel. Where the seed was a function, best/<task>.function.py defines
    it by the best kernel. Raises StorageError if the folder cannot be written; the
    database is not changed.
    """
    report = RunReport.read(database)
    for task in report.tasks:
        if task.task.id.startswith("module:"):
            folder.write(folder.path / "tasks" / f"{task.task.slug}.py", task.task.source)
        best = best_attempt(report.attempts[task.task.id])
        if best is None:
            continue
        source, faster = best.candidate.source, submitted(best)
        if faster is not None:
            folder.write(folder.best(f"{task.task.slug}.kernel"), source)
            source = with_baseline(task.task, best, faster)
        folder.write(folder.best(task.task.slug), source)
        seeds = [each.candidate for each in report.attempts[task.task.id] if each.candidate.origin == "seed"]
        for text in filter(None, (function_text(each, task.task) for each in seeds)):
            folder.write(folder.best(f"{task.task.slug}.function"), text)
    folder.write(folder.report, render(report, ReportFormat.html))
    folder.write(folder.summary, report.summary.model_dump_json(indent=2) + "\n")
    return report.summary
