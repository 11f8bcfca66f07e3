"""Rollouts of several turns over HTTP: a prompt, a reply, its outcome, the next prompt.

A rollout is its request and its replies, which are in the ledger. After a restart it is walked through again,
which costs nothing: its evaluations are in the ledger too.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, TypeVar

import anyio
from fastapi import APIRouter, HTTPException
from pydantic import Field, JsonValue

from kernelwright.agent.llm.model import Message
from kernelwright.agent.llm.session import languages_for
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import EFFORTS, QUICK
from kernelwright.kernelbench.records import Language, Record
from kernelwright.kernelbench.remote.wire import EffortOf, Reply, SentTask, TargetMachine
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.rollout import Rollout
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.outcome import Outcome
from kernelwright.rl_training.serving.evaluator.grading import RequestGrader, scheme_asked
from kernelwright.rl_training.serving.evaluator.guards import Client
from kernelwright.rl_training.serving.evaluator.ledger import Ledger
from kernelwright.rl_training.serving.evaluator.queue import EvaluationQueue
from kernelwright.rl_training.serving.evaluator.queued_pool import QueuedPool

_HELD = 1024  # rollouts in memory; others are walked through again when they are asked for
_AT_ONCE = 256  # replies that are being evaluated
MOST_TURNS = 64
R = TypeVar("R")


class RolloutRequest(Record):
    """A task to be answered in at most `turns` turns."""

    task: Annotated[str, Field(min_length=1, max_length=500)] | SentTask
    turns: int = Field(default=1, ge=1, le=MOST_TURNS)
    scheme: Annotated[str, Field(max_length=100)] | dict[str, JsonValue] = "log-speedup"
    effort: EffortOf | None = None
    language: Language | None = None  # that kernels are to be written in; None: the target's usual one


class RolloutReply(Record):
    """A reply. `turn`: its number, from 0; a reply that is sent again with its number counts once."""

    reply: Reply
    turn: int | None = Field(default=None, ge=0, lt=MOST_TURNS)


class RolloutTurn(Record):
    """Outcome of a reply. `reward` null: nothing is known of it, so nothing is to be learned."""

    outcome: Outcome
    reward: float | None
    terms: dict[str, float] = Field(default_factory=dict)


class RolloutState(Record):
    """State of a rollout. `messages`: the prompt to answer; none once it has `ended`, for that reason.

    `returns`: the credit of each turn, with later rewards in it, once it has ended.
    """

    id: str
    turns: tuple[RolloutTurn, ...]
    messages: tuple[Message, ...] | None
    ended: str
    returns: tuple[float | None, ...] | None
    target: TargetMachine


class HeldRollout:
    """A rollout in memory. Replies are taken one at a time."""

    def __init__(self, rollout: Rollout, grader: Grader) -> None:
        self.rollout, self.grader, self.lock = rollout, grader, threading.Lock()
        self.replies: list[str] = []

    def take(self, reply: str) -> None:
        self.rollout.take(reply)
        self.replies.append(reply)


class Rollouts:
    """Rollouts of all clients. Thread-safe; methods block while a reply is evaluated."""

    def __init__(
        self, ledger: Ledger, queue: EvaluationQueue, grader: RequestGrader, patience_s: float = 3600.0
    ) -> None:
        self._ledger, self._queue, self._grader, self._patience_s = ledger, queue, grader, patience_s
        self._held: OrderedDict[str, HeldRollout] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, request: RolloutRequest, client: str) -> RolloutState:
        """Begin a rollout. Raises NotAllowedError, UsageError."""
        held = self._walked(request, client, ())
        id = self._ledger.add_rollout(client, request.model_dump_json())
        self._hold(id, held)
        return self._state(id, held)

    def find(self, id: str, client: str) -> RolloutState | None:
        """Return the state of a client's rollout; None if there is none with this id."""
        held = self._of(id, client)
        return None if held is None else self._state(id, held)

    def reply(self, id: str, reply: RolloutReply, client: str) -> RolloutState | None:
        """Grade a reply and return the state after it.

        Raises UsageError for a turn that is not the next one, and once the rollout has ended.
        """
        held = self._of(id, client)
        if held is None:
            return None
        with held.lock:
            had = len(held.replies)
            if reply.turn is not None and reply.turn < had and held.replies[reply.turn] == reply.reply:
                return self._state(id, held)
            if held.rollout.ended:
                raise UsageError(f"the rollout has ended: {held.rollout.ended}", "begin another")
            if reply.turn is not None and reply.turn != had:
                raise UsageError(f"turn {reply.turn} is not the next one", f"answer turn {had}")
            self._ledger.add_reply(id, [*held.replies, reply.reply])
            held.take(reply.reply)
            return self._state(id, held)

    def _of(self, id: str, client: str) -> HeldRollout | None:
        found = self._ledger.rollout(id, client)
        if found is None:
            return None
        with self._lock:
            if id in self._held:
                self._held.move_to_end(id)
                return self._held[id]
        request, replies = found
        return self._hold(id, self._walked(RolloutRequest.model_validate_json(request), client, replies))

    def _hold(self, id: str, held: HeldRollout) -> HeldRollout:
        with self._lock:
            held = self._held.setdefault(id, held)
            while len(self._held) > _HELD:
                self._held.popitem(last=False)
        return held

    def _walked(self, request: RolloutRequest, client: str, replies: Sequence[str]) -> HeldRollout:
        """Return a rollout after these replies."""
        task, scheme = self._grader.tasks.find(request.task), scheme_asked(request.scheme)
        assert scheme is not None
        effort = EFFORTS[request.effort] if request.effort is not None else QUICK
        target = self._grader.info.target
        grader = Grader(
            QueuedPool(self._queue, self._grader.pool, client),
            scheme,
            effort=effort,
            again=EFFORTS["thorough" if effort == EFFORTS["full"] else "full"],
            patience_s=self._patience_s,
        )
        data = TaskData(
            task=task,
            language=request.language or languages_for(target.device)[0],
            target=target,
            work=self._grader.pool.work(task),
        )
        held = HeldRollout(Rollout(data, grader, request.turns), grader)
        for reply in replies:
            if not held.rollout.ended:
                held.take(reply)
        return held

    def _state(self, id: str, held: HeldRollout) -> RolloutState:
        rollout = held.rollout
        trajectory = rollout.trajectory()
        returns = tuple(held.grader.scheme.returns(trajectory.rewards)) if rollout.ended else None
        return RolloutState(
            id=id,
            turns=tuple(
                RolloutTurn(
                    outcome=turn.outcome,
                    reward=turn.reward,
                    terms={name: term.value for name, term in turn.terms.items()},
                )
                for turn in trajectory.turns
            ),
            messages=None if rollout.ended else rollout.messages,
            ended=rollout.ended,
            returns=returns,
            target=self._grader.machine,
        )


def rollout_routes(rollouts: Rollouts) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["rollouts"])
    # Threads of their own: others must be answered while many rollouts wait for their verdicts.
    threads = anyio.CapacityLimiter(_AT_ONCE)

    async def apart(function: Callable[..., R], *arguments: object) -> R:
        return await anyio.to_thread.run_sync(partial(function, *arguments), limiter=threads)

    @routes.post("/v1/rollouts", status_code=201)
    async def begin_rollout(request: RolloutRequest, who: Client) -> RolloutState:
        """Begin a rollout: the answer has the first prompt."""
        return await apart(rollouts.begin, request, who)

    @routes.get("/v1/rollouts/{id}")
    async def rollout(id: str, who: Client) -> RolloutState:
        """Tell the state of a rollout."""
        return _known(await apart(rollouts.find, id, who))

    @routes.post("/v1/rollouts/{id}/replies")
    async def reply_in_rollout(id: str, reply: RolloutReply, who: Client) -> RolloutState:
        """Answer the prompt: once the reply is evaluated, the answer has its reward and the next prompt."""
        return _known(await apart(rollouts.reply, id, reply, who))

    return routes


def _known(found: RolloutState | None) -> RolloutState:
    if found is None:
        raise HTTPException(404, "no such rollout")
    return found
