"""A worker's entry that has Inductor start a process of its pool, and says which processes it has then."""

import os

from kernelwright.kernelbench.evaluator.processes import compilers
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.sandbox import process_tree


def serve(channel: Channel) -> None:
    message, _ = channel.receive_json()
    with compilers.several(message["compilers"]):
        from torch._inductor.async_compile import AsyncCompile

        of_pool = AsyncCompile.process_pool().submit(os.getpid).result(timeout=120)
        during = process_tree.tree(os.getpid())
    after = process_tree.tree(os.getpid())
    channel.send_json({"own": os.getpid(), "of_pool": of_pool, "during": during, "after": after})
