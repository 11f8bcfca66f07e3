"""Seeds of the user's in runs of the builtin coder alone, with a pool that believes what a file says."""

import re
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.run import Run
from kernelwright.agent.search import Request, Stop
from kernelwright.agent.seeds import SeedsApart
from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.options import build
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.results.outputs import write_outputs
from kernelwright.results.store.folder import RunFolder
from tests.helpers.conversing import TASK, Pool, file, opened

FUNCTION = f"{file(1.5).partition('class')[0]}speedup = 1.5\n\n\ndef softmax(x, axis=0):\n    ...\n"


class BuiltinPool(Pool):
    """Has the builtin coder write one kernel, as fast as is said."""

    def __init__(self, speedup: float) -> None:
        super().__init__()
        self.written = Candidate(
            source=file(speedup), language="cpp", author="builtin", schedule={"threads": "2"}
        )

    def ask(self, task: Task, do: Any, client: str) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(self.written)
        return found

    def evaluate(
        self, task: Task, candidate: Candidate, measurement: Measurement = Measurement()
    ) -> Evaluation:
        """Believe what is said anywhere in the file: a function has a ModelNew after it."""
        [says] = re.findall(r"speedup = ([\d.]+)", candidate.source)
        plain = candidate.model_copy(update={"source": file(float(says))})
        found = super().evaluate(task, plain, measurement)
        return found.model_copy(update={"candidate": candidate.sha256})


@pytest.mark.parametrize(("builtin", "winner"), [(1.2, 1.5), (1.8, 1.8)])
def test_the_builtin_coder_competes_with_a_function_of_the_user_s_and_its_interface_is_kept(
    tmp_path: Path, builtin: float, winner: float
) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    options = {"seed": f"{tmp_path}/mine.py:softmax", "rounds": 1, "memory": False}
    config, pool = build(RunConfig, options).resolved(), BuiltinPool(builtin)
    config.check()
    with RunFolder.create(tmp_path / "run") as folder, opened(folder.path) as database:
        database.add_task(TASK)
        assert Run(config, database, pool).execute()  # type: ignore[arg-type]
        attempts = database.attempts(TASK.id)
        write_outputs(folder, database)
    assert [(a.candidate.origin, a.candidate.author, a.confirms) for a in attempts] == [
        ("seed", "file", False),
        ("round", "builtin", False),
        ("seed" if winner == 1.5 else "round", "file" if winner == 1.5 else "builtin", True),
    ]
    assert f"speedup = {winner}" in (tmp_path / "run" / "best" / "file_0.py").read_text()
    assert "\ndef softmax(x, axis=0):\n" in (tmp_path / "run" / "best" / "file_0.function.py").read_text()


class _Recorded:
    """A search that keeps the histories that it is shown."""

    def __init__(self, step: list[Request] | Stop) -> None:
        self.next, self.shown = step, list[list[Any]]()

    def step(self, task: Task, history: Any) -> list[Request] | Stop:
        self.shown.append(list(history))
        return self.next

    def advised_on(self, task: Task, history: Any) -> Any:
        return history


def test_requests_of_a_search_that_knows_no_seeds_see_as_much_of_the_whole_history() -> None:
    class Tried:
        def __init__(self, origin: str) -> None:
            self.candidate = Candidate(source="", language="cpp", author="a").model_copy(
                update={"origin": origin}
            )

    history: Any = [Tried("seed"), Tried("round"), Tried("repair")]
    search = _Recorded([Request(seen=2), Request(seen=0, sample=1)])
    apart = SeedsApart(search)
    assert apart.step(TASK, history) == [Request(seen=3), Request(seen=1, sample=1)]
    assert search.shown == [history[1:]] and list(apart.advised_on(TASK, history)) == history[1:]
    assert SeedsApart(_Recorded(Stop("enough"))).step(TASK, history) == Stop("enough")
