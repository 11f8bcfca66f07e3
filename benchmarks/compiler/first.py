"""Time from a task to its first correct kernel, on every fourth task of the suite.

    python -m benchmarks first

Nothing is built before, and timing the kernel is not counted. Machine: CPU, quiet. Time: 5 minutes
(estimate). Writes cpu/first.md.
"""

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.publishing import log, publish
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import Effort, Measurement, Referee
from kernelwright.kernelbench.records import Verdict

_EVERY = 4  # tasks
_ONE_ROUND = Measurement(("eager",), Effort(rounds=1, processes=1, most_processes=1, half_width=1.0))


def run() -> None:
    tasks = sources.resolve([], suite="builtin")[::_EVERY]
    correct: list[tuple[float, str]] = []  # seconds, task
    with TemporaryDirectory() as cache, Referee.start(cache=Path(cache)) as evaluator:
        coder = BuiltinCoder(lambda task: trace(evaluator.sessions.pool, task))
        # The first task starts the workers, and is not counted.
        evaluator.evaluate(tasks[0], coder.propose(tasks[0], [], None), _ONE_ROUND)
        for task in tasks[1:]:
            start = time.perf_counter()
            candidate = coder.propose(task, [], None)
            evaluation = evaluator.evaluate(task, candidate, _ONE_ROUND)
            seconds = time.perf_counter() - start - evaluation.stages.time_s
            if evaluation.verdict is Verdict.correct:
                correct.append((seconds, task.id))
            log(f"{task.id}: {evaluation.verdict} after {seconds:.1f} s")
        machine = evaluator.target.fingerprint
    longest, slowest = max(correct)
    rows = [
        ("tasks", f"{len(correct)} of {len(tasks) - 1}"),
        ("median", f"{statistics.median(seconds for seconds, _ in correct):.1f} s"),
        ("longest", f"{longest:.1f} s, {slowest}"),
    ]
    title = "From a task to its first kernel that is right, nothing built before, without timing it"
    publish("first", title, ("", ""), rows, machine)
