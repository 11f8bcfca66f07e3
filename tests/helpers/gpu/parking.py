"""Evaluations a minute on the tests' own GPU: 16 candidates of 4 tasks, with and without parked sessions.

    python -m tests.helpers.gpu.parking

Each round asks for a candidate of every task, as searches do that take turns; eager and compile, four rounds
of blocks each. torch.compile is eager's code there, so what is saved is the oracles' and workers' start.
"""

import argparse
import tempfile
import time
from pathlib import Path
from unittest import mock

from kernelwright.kernelbench.evaluator import SEARCH, EvaluationPool, Measurement, device_slots
from kernelwright.kernelbench.evaluator.processes import shared_memory
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.records import Verdict
from tests.helpers.gpu.busy_tasks import candidate_of, task_of
from tests.helpers.gpu.evaluating import evaluator_of

HOW = Measurement(("eager", "compile"), SEARCH)


def minutes(parked: bool, devices: int, tasks: int, rounds: int) -> tuple[float, int]:
    """Minutes that all evaluations take, and how many oracles were started."""
    oracles, start, cache = 0, WorkerPool.start, device_slots.SessionCache

    def counted(pool: WorkerPool, role: str, *arguments: object, **options: object) -> object:
        nonlocal oracles
        oracles += role == "oracle"
        return start(pool, role, *arguments, **options)  # type: ignore[arg-type]

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(WorkerPool, "start", counted),
        mock.patch.object(device_slots, "SessionCache", cache if parked else lambda _: cache(0)),
        mock.patch.object(shared_memory, "_BUSY_S", 5.0),  # on a busy machine a probe takes longer
        evaluator_of(devices, Path(folder)) as (evaluator, _),
    ):
        targets = [member.target for member in evaluator.members]  # ceilings are no part of it
        with EvaluationPool(evaluator, slots=len(targets)) as pool:
            started = time.monotonic()
            for number in range(rounds):
                candidate = candidate_of(before=f"busy(10)  # {number}")
                futures = [
                    pool.submit(task_of(20.0 + which), candidate, HOW, client=str(which))
                    for which in range(tasks)
                ]
                assert {future.result().verdict for future in futures} == {Verdict.correct}
            return (time.monotonic() - started) / 60, oracles


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    for parked in (False, True):
        took, oracles = minutes(parked, given.devices, given.tasks, given.rounds)
        count = given.tasks * given.rounds
        print(
            f"{'parked' if parked else 'not parked'}: {count} evaluations in {60 * took:.0f} s, "
            f"{count / took:.1f} a minute, {oracles} oracles"
        )


if __name__ == "__main__":
    main()
