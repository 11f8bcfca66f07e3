"""Calls of an actor on a node, and what it means that one fails.

the actor's process died       Ray starts it again; the call is made again, at most `MOST_TRIES` times
its node died                  the slot is lost, and another one does the evaluation
the method raised              so does the call
"""

import logging
import threading
import time
from collections.abc import Hashable
from typing import Any

from kernelwright.kernelbench.errors import InfrastructureError, KernelwrightError
from kernelwright.kernelbench.evaluator.pool import NoVerdictError
from kernelwright.kernelbench.remote.cluster.nodes import RESOURCE, SlotPlace
from kernelwright.kernelbench.remote.cluster.slot import ClusterSlot, SlotInfo, StartSlot

MOST_TRIES = 3  # at what is asked, on all slots together
BACK_S = 180.0  # that an actor may take to start again
_PAUSE_S, _CLOSE_S = 0.5, 5.0
_AHEAD = 10  # calls beside the evaluations under way: those that wait, and questions
_GONE = "it is gone"
_LEFT = "begin again with --resume"
_log = logging.getLogger("kernelwright")


class SlotLostError(InfrastructureError):
    """No answer of an actor any more: its node is gone, or it does not start again."""


class TryCounter:
    """Number of tries at each evaluation, which all slots of a cluster share."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def failed(self, key: Hashable) -> int:
        """Count a failed try and return how many there are."""
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
            return self._counts[key]

    def ended(self, key: Hashable) -> None:
        with self._lock:
            self._counts.pop(key, None)


class SlotHandle:
    """One actor, as all threads that call it share it."""

    def __init__(self, place: SlotPlace, start: StartSlot, slots: int, tries: TryCounter) -> None:
        """Have Ray start an actor; `ready` says when it has. `slots`: calls that it takes at a time."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.place, self.lost = place, ""
        self.name = f"node {place.address} ({place.node[:6]}{f', GPU {place.number}' if place.gpus else ''})"
        self._tries, self._closed = tries, threading.Event()
        self._looking = threading.Lock()
        self._actor = (
            ray.remote(ClusterSlot)
            .options(
                num_cpus=place.cpus,
                num_gpus=place.gpus,
                resources={RESOURCE: place.resources} if place.resources else {},
                scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False),
                max_concurrency=slots + _AHEAD,
                max_restarts=-1,
                max_task_retries=0,  # they are counted here, over all slots
            )
            .remote(start, place.number, place.of)
        )
        self.ready = self._actor.info.remote()

    def info(self) -> SlotInfo:
        """Return what the actor says of itself, once it has started. Raises InfrastructureError."""
        return self._answer(self.ready)

    def call(self, method: str, *arguments: object) -> Any:
        """Return the answer of a method. Raises what it raised, SlotDiedError and SlotLostError."""
        if self.lost:
            raise SlotLostError(f"{self.name}: {self.lost}", _LEFT)
        return self._answer(getattr(self._actor, method).remote(*arguments))

    def call_in_parts(self, method: str, parts: int, *arguments: object) -> tuple[Any, Any]:
        """Return the first value of a method, and references to the others, which stay where they are."""
        references = getattr(self._actor, method).options(num_returns=parts).remote(*arguments)
        return self._answer(references[0]), references[1]

    def call_again(self, key: Hashable, method: str, *arguments: object) -> Any:
        """Return the answer of a method, asked again where the process died.

        `key`: of what is asked, whose tries are counted. Raises NoVerdictError after `MOST_TRIES`,
        SlotLostError where this slot is not to be asked again.
        """
        while True:
            try:
                found = self.call(method, *arguments)
            except SlotDiedError as death:
                if self._closed.is_set():
                    raise
                tries = self._tries.failed(key)
                if tries >= MOST_TRIES:
                    self._tries.ended(key)
                    raise NoVerdictError(
                        f"no verdict: {tries} processes that worked on it died, the last on {self.name}",
                        "see Ray's logs there, and its memory",
                    ) from None
                self._await_return(death)
            except SlotLostError:
                raise
            except BaseException:
                self._tries.ended(key)
                raise
            else:
                self._tries.ended(key)
                return found

    def close(self) -> None:
        """End the actor: what is under way there ends, and nothing is asked again."""
        import ray

        if self._closed.is_set() or not ray.is_initialized():
            return
        self._closed.set()
        try:
            if not self.lost:
                ray.wait([self._actor.close.remote()], timeout=_CLOSE_S)
            ray.kill(self._actor)
        except (ray.exceptions.RayError, ValueError):
            pass  # it is gone

    def _await_return(self, death: InfrastructureError) -> None:
        """Wait until the actor runs again. Raises SlotLostError."""
        import ray

        with self._looking:
            until = time.monotonic() + BACK_S
            while not self.lost and not self._closed.is_set():
                try:
                    ray.get(self._actor.info.remote(), timeout=max(1.0, until - time.monotonic()))
                except ray.exceptions.ActorUnavailableError:
                    if time.monotonic() < until:
                        self._closed.wait(_PAUSE_S)
                        continue
                    self.lost = f"it does not come back within {BACK_S:.0f} s"
                except ray.exceptions.ActorUnschedulableError:
                    self.lost = _GONE
                except ray.exceptions.RayError as error:
                    self.lost = f"its evaluator is gone ({_in_a_line(error)})"
                else:
                    return
        raise SlotLostError(f"{self.name}: {self.lost}" if self.lost else death.message, _LEFT)

    def _answer(self, reference: Any) -> Any:
        import ray

        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, KernelwrightError):
                raise cause from None
            raise InfrastructureError(
                f"{self.name}: {_in_a_line(cause)}", "see Ray's logs there; report it if it is a bug"
            ) from None
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.ActorUnschedulableError):
                self.lost = _GONE
            raise SlotDiedError(f"{self.name}: {_in_a_line(error)}", "see Ray's logs there") from None


class SlotDiedError(InfrastructureError):
    """No answer to one call, for the process that was to give it died."""


def _in_a_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Ray's traceback ends with the error; its own errors begin with it.
    line = lines[-1] if lines and lines[0].startswith(("Traceback", "\x1b")) else (lines or [""])[0]
    return (line or type(error).__name__)[:300]
