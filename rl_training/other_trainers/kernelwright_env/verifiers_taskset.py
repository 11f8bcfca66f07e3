"""Taskset for verifiers (its v1, from release 0.4 on), which prime-rl and the environments hub take.

    vf-eval kernelwright-env --env.agent.harness.id null

Without a verdict the reward raises: verifiers records the rollout as failed, `rewards` as None, and runs it
again as --env.retries says; it is in no mean.
"""

from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf

from .settings import connect, rows


class KernelData(vf.TaskData):
    """A task. `answer`: as the server takes it."""

    answer: str


class KernelTask(vf.Task[KernelData]):
    """Scoring of the last reply: the file in it is built, verified and timed."""

    @property
    def key(self) -> str:
        return self.data.name or self.hash

    @vf.reward  # type: ignore[untyped-decorator]
    async def measured_speedup(self, trace: vf.Trace) -> float:
        """Return the reward. Raises UnknownRewardError."""
        client = connect()
        graded = await client.apart(client.grade, self.data.answer, _reply(trace))
        reward = graded.known
        trace.info["kernelwright"] = {"verdict": graded.verdict, "reason": graded.reason}
        for name, value in graded.numbers.items():
            trace.record_metric(name, value)
        return reward


class KernelConfig(vf.TasksetConfig):
    """`--env.taskset.split test`: the tasks that were held out."""

    split: Literal["train", "test"] = "train"


class KernelTaskset(vf.Taskset[KernelTask, KernelConfig]):
    """The tasks of this package."""

    def load(self) -> Iterator[KernelTask]:
        for row in rows(self.config.split):
            system = [message["content"] for message in row.prompt if message["role"] == "system"]
            user = [message["content"] for message in row.prompt if message["role"] == "user"]
            data = KernelData(
                name=row.info["task"],
                prompt="\n\n".join(user),
                system_prompt="\n\n".join(system) or None,
                answer=row.answer,
            )
            yield KernelTask(data, self.config.task)


def _reply(trace: vf.Trace) -> str:
    return trace.root_reply or trace.last_reply
