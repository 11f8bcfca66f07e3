"""Access to the evaluation hosts: named Ray actors, or, without Ray, a host in this process.

Machines that only evaluate offer the resource `kernelwright_evaluation`, one for each device that may be
timed on:

    ray start --address=HEAD:6379 --num-cpus=0 --resources='{"kernelwright_evaluation": 1}'

Each host takes one of these, so no device has two. It takes no CPU of Ray's: an actor that holds all CPUs
leaves later tasks waiting forever, and verl spreads its own workers over nodes that have CPUs. A task always
goes to the same host, since replies that are compared must be timed on one machine.
"""

import asyncio
import atexit
import hashlib
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import KernelwrightError, MissingPrerequisite
from kernelwright.rl_training.cluster.host import EvaluationHost, EvaluationSettings
from kernelwright.rl_training.cluster.scored import NoVerdict

RESOURCE = "kernelwright_evaluation"
_ATTEMPTS = 2  # a host goes with the process that made it; the second attempt makes another
_MARGIN_S = 120.0  # beyond the host's own patience: for a profile, and the way there and back

Ask = Callable[..., Coroutine[Any, Any, Any]]  # (method's name, *arguments)


def asker(evaluation: EvaluationSettings, task: str) -> Ask:
    """Return a function that calls methods of a task's host. It raises NoVerdict if the host fails."""
    if not _in_ray():
        return _Here(evaluation)
    return _There(evaluation, task)


def _in_ray() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


class _Here:
    """One host for this process, created on first use."""

    _host: EvaluationHost | None = None
    _made = threading.Lock()

    def __init__(self, evaluation: EvaluationSettings) -> None:
        self._evaluation = evaluation

    async def __call__(self, method: str, *arguments: object) -> Any:
        return await asyncio.to_thread(self._call, method, *arguments)

    def _call(self, method: str, *arguments: object) -> Any:
        with _Here._made:
            if _Here._host is None:
                _Here._host = EvaluationHost(self._evaluation)
                atexit.register(_Here._host.close)
        return getattr(_Here._host, method)(*arguments)


class _There:
    def __init__(self, evaluation: EvaluationSettings, task: str) -> None:
        self._evaluation, self._task = evaluation, task

    async def __call__(self, method: str, *arguments: object) -> Any:
        import ray

        for attempt in range(1, _ATTEMPTS + 1):
            number, host = await asyncio.to_thread(self._found)  # Ray's look-ups block
            answer = getattr(host, method).remote(*arguments)
            try:
                return await asyncio.wait_for(answer, self._evaluation.patience_s + _MARGIN_S)
            except TimeoutError:
                raise NoVerdict(f"evaluation host {number} did not answer in time") from None
            except ray.exceptions.RayActorError as error:
                _actors.pop(number, None)
                if attempt == _ATTEMPTS:
                    raise NoVerdict(f"evaluation host {number} has died: {error}") from None
            except ray.exceptions.RayTaskError as error:
                raise NoVerdict(f"evaluation host {number} has failed: {error.cause}") from None
        raise AssertionError("unreachable")

    def _found(self) -> tuple[int, Any]:
        number = int(hashlib.sha256(self._task.encode()).hexdigest(), 16) % count()
        return number, actor(self._evaluation, number)


def count() -> int:
    """Return the number of possible hosts.

    Raises MissingPrerequisite if there is none, which would wait forever.
    """
    import ray

    found = int(ray.cluster_resources().get(RESOURCE, 0))
    if found == 0:
        raise MissingPrerequisite(
            f"no node of the Ray cluster offers {RESOURCE}",
            f"start an evaluation node: ray start --address=HEAD:6379 --num-cpus=0"
            f" --resources='{{\"{RESOURCE}\": 1}}'",
        )
    return found


_actors: dict[int, Any] = {}  # kept, for an actor to whom nobody holds a handle is ended


def actor(evaluation: EvaluationSettings, number: int) -> Any:
    """Return the host of this number; the first caller creates it, and it ends with the job."""
    import ray

    if number not in _actors:
        made = ray.remote(EvaluationHost).options(
            name=f"kernelwright-host-{number}",
            get_if_exists=True,
            num_cpus=0,
            num_gpus=0 if evaluation.device == "cpu" else 1,
            resources={RESOURCE: 1},
            max_concurrency=evaluation.requests,
            max_restarts=-1,
            max_task_retries=2,  # by the host that is started again, to whom an evaluation is one like others
        )
        _actors[number] = made.remote(evaluation, number)
    return _actors[number]


def main() -> int:
    """Print the available hosts, before models are loaded: python -m THIS FILE."""
    import ray

    try:
        evaluation = EvaluationSettings.read(Path(sys.argv[1]))
        ray.init(address="auto", log_to_driver=False)
        for number in range(count()):
            chip = ray.get(actor(evaluation, number).chip.remote(), timeout=300)
            print(f"evaluation host {number}: {chip}, {evaluation.device}")
    except KernelwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ConnectionError, ray.exceptions.RayError) as error:
        print(
            f"error: no evaluation host answers: {error} — does another run use them? See README.md",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
