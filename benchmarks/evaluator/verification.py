"""Time to verify a correct candidate, by the time of an eager call.

    python -m benchmarks verification

Reads the runs that `python -m benchmarks suite` has left, and measures nothing. Machine: any. Time: seconds.
Writes cpu/verification.md.
"""

import itertools
import math
import statistics

from benchmarks.publishing import publish
from benchmarks.runs import suite_run
from kernelwright.results.store.database import RunDatabase

_EDGES_MS = (0, 5, 10, 20, 40, 80, math.inf)


def run() -> None:
    verified: list[tuple[float, float, str]] = []  # eager's ms, seconds, task
    for level in (1, 2, 3):
        with RunDatabase.open(suite_run(level), read_only=True) as database:
            machine = database.run.target.fingerprint
            for entry in database.tasks():
                for attempt in database.attempts(entry.task.id):
                    timing, seconds = attempt.evaluation.timing, attempt.evaluation.stages.verify_s
                    if timing is not None and timing.eager_us is not None:
                        verified.append((timing.eager_us.median / 1e3, seconds, entry.task.id))
    rows = []
    for low, high in itertools.pairwise(_EDGES_MS):
        among = [(seconds, task) for ms, seconds, task in verified if low <= ms < high]
        if among:
            longest, task = max(among)
            median = statistics.median(seconds for seconds, _ in among)
            label = f"{low} to {high} ms" if high < math.inf else f"{low} ms and more"
            rows.append((label, f"{len(among)}", f"{median:.2f} s", f"{longest:.2f} s", task))
    header = ("a call of eager", "evaluations", "median", "longest", "of")
    publish("verification", "What verifying a candidate takes", header, rows, machine)
