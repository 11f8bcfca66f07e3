"""A worker's entry that starts as many threads as it is to compute with, all alive at a time."""

import os
import threading

from kernelwright.kernelbench.evaluator.processes.channel import Channel


def serve(channel: Channel) -> None:
    count = int(os.environ["OMP_NUM_THREADS"])
    together = threading.Barrier(count + 1)
    channel.receive_json()
    threads = [threading.Thread(target=together.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    together.wait()
    channel.send_json({"threads": len(threads)})
