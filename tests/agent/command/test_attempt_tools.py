"""Tools of an attempt, called from many threads at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelwright.agent.command.tools import AttemptTools
from kernelwright.agent.display.progress import RunProgress
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.recorder import DatabaseRecorder
from kernelwright.agent.spending.budget import BudgetSpent, Evaluations
from kernelwright.kernelbench.options import build
from tests.helpers.conversing import TASK, Pool, file, opened


def test_calls_side_by_side_time_no_more_files_than_there_are_rounds(tmp_path: Path) -> None:
    pool = Pool(0.3)
    config = build(RunConfig, {"coder": "command", "command": "agent", "rounds": 2, "seed": "none"})
    with opened(tmp_path) as database:
        database.add_task(TASK)
        tools = AttemptTools(
            config,
            database,
            pool,  # type: ignore[arg-type]
            DatabaseRecorder(database, pool.timing_lock, RunProgress(), threading.Event(), memory=None),
            TASK,
            Evaluations(),
            lambda tried: "2 rounds" if len(tried) >= 2 else None,
            "agent",
        )

        def refused(number: int) -> bool:
            try:
                tools.evaluate(TASK, file(1 + number / 10), timed=True)
            except BudgetSpent:
                return True
            return False

        with ThreadPoolExecutor(8) as executor:
            answers = list(executor.map(refused, range(8)))
        assert answers.count(False) == 2 and len(pool.evaluated) == 2
        assert pool.most_under_way == 2 and tools.left(TASK) == "0 timed files left"
