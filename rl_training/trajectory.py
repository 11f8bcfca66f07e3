"""Trajectories of a policy on a task: turns with prompts, replies, outcomes and rewards; JSON lines."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from kernelwright.agent.llm.model import Message
from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Record
from kernelwright.results.store.encoding import record_text
from kernelwright.results.store.folder import write_atomically
from kernelwright.rl_training.outcome import Outcome

SCHEMA = 1


class RewardTerm(Record):
    """One term of a reward. `value`: its contribution, weight included; `metrics`: for curves."""

    value: float
    metrics: dict[str, float] = Field(default_factory=dict)


class SpentSeconds(Record):
    """Seconds that the evaluation of one reply took. `queue`: from its submission on, in no stage."""

    queue: float = 0.0
    build: float = 0.0
    verify: float = 0.0
    time: float = 0.0
    cached: bool = False  # it was evaluated before, and the stages are those of that evaluation

    @property
    def evaluated(self) -> bool:
        """True unless the reply was rejected untried, as one without a file is."""
        return self.build + self.verify + self.time > 0


class Turn(Record):
    """One reply to one complete prompt."""

    messages: tuple[Message, ...]  # the prompt
    reply: str
    reasoning: str = ""  # that the model said to itself
    candidate: str  # sha256 of `source`
    source: str  # "" where the reply holds no candidate
    outcome: Outcome
    terms: dict[str, RewardTerm] = Field(default_factory=dict)
    reward: float | None = None  # None: nothing is to be learned from this turn
    spent: SpentSeconds | None = None  # None without a verdict, and in files of before


class Trajectory(Record):
    schema_version: int = Field(default=SCHEMA, alias="schema")
    task: str
    task_sha256: str
    origin: str  # "run <id>", or whose policy
    turns: tuple[Turn, ...]
    ended: str  # why there are no more turns

    model_config = Record.model_config | {"populate_by_name": True, "serialize_by_alias": True}

    @property
    def rewards(self) -> tuple[float | None, ...]:
        return tuple(turn.reward for turn in self.turns)


def write(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write one line per trajectory, atomically. Raises StorageError."""
    text = "".join(f"{record_text(trajectory)}\n" for trajectory in trajectories)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "choose another file") from error


def read(path: Path) -> Iterator[Trajectory]:
    """Read trajectories. Raises StorageError for an unreadable file or line."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _parsed(line, f"{path} line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}", "use a file of trajectories") from error


def _parsed(line: str, where: str) -> Trajectory:
    try:
        found = Trajectory.model_validate_json(line)
    except ValidationError as error:
        raise StorageError(
            f"invalid trajectory in {where}: {error.errors()[0]['msg']}",
            "read it with the version that wrote it",
        ) from error
    if found.schema_version != SCHEMA:
        raise StorageError(
            f"{where} has schema {found.schema_version}, this version reads {SCHEMA}",
            "read it with the version that wrote it",
        )
    return found
