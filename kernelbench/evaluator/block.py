"""Blocks of calls, which are run and timed together."""

import math
from dataclasses import dataclass

from kernelwright.kernelbench.evaluator.processes.shared_memory import Outputs
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker


@dataclass(frozen=True)
class Block:
    """Result of a block of calls: the referee's seconds and where each call's outputs lie.

    `waited_s`: what the worker's threads waited for a CPU meanwhile. Calls that came one by one, in
    `messages` of their own, leave the outputs of the last one only.
    """

    seconds: float
    waited_s: float
    outputs: Outputs
    messages: int = 1
    device_s: float = math.nan  # by the worker's own account

    def followed_by(self, other: "Block") -> "Block":
        return Block(
            self.seconds + other.seconds,
            self.waited_s + other.waited_s,
            other.outputs,
            self.messages + other.messages,
            self.device_s + other.device_s,
        )


class PrematureLaunch(Exception):  # noqa: N818 - what happened
    """Something ran on a GPU between the coming of a worker's inputs and its being asked."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker
