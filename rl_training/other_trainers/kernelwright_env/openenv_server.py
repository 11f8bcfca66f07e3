"""Environment for OpenEnv: a server of `reset` and `step`, over HTTP and WebSocket.

    openenv validate DIR                 and    openenv push DIR     (a Space that needs KERNELWRIGHT_SERVER)
    python -m server.app --port 8000     in DIR, without a container

`reset(task=…)` takes a task by its id, `reset(seed=N)` the Nth; without either they come in turn. Without a
verdict an observation has `done`, the reward None and its reason in `no_verdict`.
"""

import itertools
from functools import cache
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from .client import ServedRollout, UnknownRewardError
from .settings import PackagedTask, connect, rows, settings

MOST_SESSIONS = 512


class KernelAction(Action):
    """A reply: text with the file in a fenced block."""

    reply: str = Field(description="Reply to the messages, with a Python file in a fenced block")


class KernelObservation(Observation):
    """Prompt to answer, and what came of the last reply."""

    task: str = Field(default="", description="Id of the task")
    messages: list[dict[str, str]] = Field(default_factory=list, description="Prompt, none at the end")
    verdict: str | None = Field(default=None, description="Verdict on the last reply")
    reason: str = Field(default="", description="Reason of the verdict")
    speedup: float | None = Field(default=None, description="Lower bound of the speedup over PyTorch")
    no_verdict: str | None = Field(default=None, description="Why there is no verdict, and no reward")


class KernelState(State):
    """State of an episode. `returns`: the credit of each turn, at its end."""

    task: str = ""
    returns: list[float | None] = Field(default_factory=list)


class OpenEnvEnvironment(Environment[KernelAction, KernelObservation, KernelState]):
    """One task at a time, of as many turns as `settings.json` says."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    _turns = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self._rollout: ServedRollout | None = None
        self._state = KernelState()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | None = None,
        split: str = "train",
        **_: Any,
    ) -> KernelObservation:
        """Begin a task. Raises ValueError for an unknown one, RefusedError."""
        row = _row(task, seed if seed is not None else next(self._turns), split)
        self._state = KernelState(episode_id=episode_id, task=row.info["task"])
        self._rollout = None
        try:
            self._rollout = connect().begin(row.answer, settings().turns)
        except UnknownRewardError as error:
            return KernelObservation(task=self._state.task, done=True, no_verdict=str(error))
        return KernelObservation(task=self._state.task, messages=list(self._rollout.messages))

    def step(self, action: KernelAction, timeout_s: float | None = None, **_: Any) -> KernelObservation:
        """Evaluate a reply. Raises RefusedError."""
        if self._rollout is None or self._rollout.ended:
            raise ValueError("the episode has ended: reset the environment")
        self._state.step_count += 1
        try:
            self._rollout = connect().answer(self._rollout, action.reply)
        except UnknownRewardError as error:
            self._rollout = None
            return KernelObservation(task=self._state.task, done=True, no_verdict=str(error))
        turn = self._rollout.turns[-1]
        self._state.returns = list(self._rollout.returns)
        return KernelObservation(
            task=self._state.task,
            messages=list(self._rollout.messages),
            verdict=turn.verdict,
            reason=turn.reason,
            speedup=turn.speedup,
            done=bool(self._rollout.ended),
            reward=turn.reward,
            no_verdict=(turn.reason or "there is no verdict") if turn.reward is None else None,
        )

    @property
    def state(self) -> KernelState:
        return self._state


@cache
def _split(name: str) -> tuple[PackagedTask, ...]:
    return tuple(rows(name))


def _row(task: str | None, number: int, split: str) -> PackagedTask:
    found = _split(split)
    if task is not None:
        found = tuple(row for name in ("train", "test") for row in _split(name) if row.info["task"] == task)
    if not found:
        raise ValueError(f"unknown task {task}" if task is not None else f"there are no tasks in {split}")
    return found[number % len(found)]


app = create_app(
    OpenEnvEnvironment,
    KernelAction,
    KernelObservation,
    env_name="kernelwright_env",
    max_concurrent_envs=MOST_SESSIONS,
    state_cls=KernelState,
)


def main(host: str = "0.0.0.0", port: int = 8000) -> None:
    """Serve until Ctrl-C."""
    import uvicorn

    uvicorn.run(app, host=host, port=port)
