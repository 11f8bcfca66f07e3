"""The evaluator of one machine with everything that turns its evaluations into rewards, for any client."""

import threading
import uuid
from contextlib import ExitStack
from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from kernelwright.agent.llm.model import Message
from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.evaluator import EFFORTS, QUICK, Effort, Protocol, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.cluster.scored import NoVerdict, Scored, scored
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.rollout import Rollout
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.rewards.hacks import HackMemory
from kernelwright.rl_training.rewards.scheme import Scheme


class EvaluationSettings(Record):
    """Settings of evaluations and rewards: the file evaluation.json, which all processes read."""

    scheme: Scheme
    device: str = "cpu"  # "cuda:0": each host has a GPU of its own
    effort: Effort = QUICK
    again: Effort = EFFORTS["full"]  # of what is too good to be believed at once
    patience_s: PositiveFloat = 3600.0  # for a verdict, its turn included
    requests: PositiveInt = Field(default=256, le=4096)  # that a host has at a time, most of them waiting
    hacks: str | None = None  # the folder, on each host, of the memory of what was caught

    @classmethod
    def read(cls, path: Path) -> "EvaluationSettings":
        """Read the settings. Raises StorageError."""
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise StorageError(
                f"{path} cannot be read: {error}", "write it again with `kernelwright train verl`"
            ) from None


class Begun(Record):
    """A started rollout: its key, and the prompt to answer."""

    key: str
    messages: tuple[Message, ...]


class EvaluationHost:
    """Owner of the machine's one evaluator. Thread-safe; replies wait for their turn.

    Two hosts on one device would disturb each other's timings: `hosts` prevents that.
    """

    def __init__(self, evaluation: EvaluationSettings, number: int = 0) -> None:
        self._stack = ExitStack()
        evaluator = self._stack.enter_context(
            Referee.start(
                cache=cache_folder(), protocol=Protocol(effort=evaluation.effort), device=evaluation.device
            )
        )
        self._pool = self._stack.enter_context(ProfilingPool(evaluator))
        hacks = None
        if evaluation.hacks is not None:
            hacks = self._stack.enter_context(HackMemory(Path(evaluation.hacks) / f"host-{number}.sqlite3"))
        self._grader = Grader(
            self._pool,
            evaluation.scheme,
            effort=evaluation.effort,
            again=evaluation.again,
            patience_s=evaluation.patience_s,
            hacks=hacks,
        )
        self._lock = threading.Lock()
        self._open: dict[str, Rollout] = {}

    def chip(self) -> str:
        """Return the name of the chip that candidates are timed on."""
        return self._pool.target.fingerprint.chip

    def judge(self, task: str, reply: str) -> Scored:
        """Grade one reply to the first prompt of a task, a `TaskData` as JSON."""
        turn = Rollout(TaskData.model_validate_json(task), self._grader).take(reply)
        return scored(turn, turn.reward)

    def begin(self, task: str, turns: int) -> Begun:
        """Begin a rollout of several turns; the caller must `end` it."""
        rollout, key = Rollout(TaskData.model_validate_json(task), self._grader, turns), uuid.uuid4().hex
        messages = rollout.messages
        with self._lock:
            self._open[key] = rollout
        return Begun(key=key, messages=messages)

    def answer(self, key: str, reply: str) -> tuple[Message, ...] | None:
        """Grade a reply and return the next prompt; None after the last turn. Raises NoVerdict."""
        rollout = self._rollout(key)
        rollout.take(reply)
        return None if rollout.ended else rollout.messages

    def end(self, key: str) -> tuple[Scored, ...]:
        """End a rollout and return the credit of each turn. Raises NoVerdict."""
        trajectory = self._rollout(key).trajectory()
        with self._lock:
            del self._open[key]
        credits = self._grader.scheme.returns(trajectory.rewards)
        return tuple(scored(turn, credit) for turn, credit in zip(trajectory.turns, credits, strict=True))

    def _rollout(self, key: str) -> Rollout:
        with self._lock:
            if key not in self._open:
                raise NoVerdict("its host was restarted and lost the rollout")
            return self._open[key]

    def close(self) -> None:
        self._stack.close()
