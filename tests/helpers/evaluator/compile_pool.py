"""A worker's entry that has Inductor start a process of its pool, and says which that is."""

import os

from kernelwright.kernelbench.evaluator.processes import compilers
from kernelwright.kernelbench.evaluator.processes.channel import Channel


def serve(channel: Channel) -> None:
    message, _ = channel.receive_json()
    with compilers.several(message["compilers"]):
        from torch._inductor.async_compile import AsyncCompile

        of_pool = AsyncCompile.process_pool().submit(os.getpid).result(timeout=250)
    channel.send_json({"own": os.getpid(), "of_pool": of_pool})
    channel.receive_json()
