"""Worker entry that takes one measurement after the other."""

from typing import Any, Protocol

import torch

from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.profiling.survey.cpu import CpuBench
from kernelwright.profiling.survey.gpu import GpuBench
from kernelwright.profiling.survey.products import Rate
from kernelwright.profiling.survey.records import Kind


class Bench(Protocol):
    def bandwidth(self, kind: Kind, working_set_bytes: int, streaming: bool) -> float: ...

    def matmul(self, precision: str) -> Rate | None: ...

    def vector_units(self, precision: str) -> Rate | None: ...

    def overhead(self, name: str) -> float | None: ...


def serve(channel: Channel) -> None:
    """Serve in the worker: the first message names the device; each one after that is a `measuring.Step`."""
    torch.set_grad_enabled(False)
    message, _ = channel.receive_json()
    bench = _bench(torch.device(message["device"]))
    channel.send_json({})
    while True:
        message, _ = channel.receive_json()
        channel.send_json(_answer(bench, message))


def _bench(device: torch.device) -> Bench:
    if device.type == "cpu":
        return CpuBench()
    torch.cuda.set_device(device)
    return GpuBench(device)


def _answer(bench: Bench, message: dict[str, Any]) -> dict[str, Any]:
    name = message["name"]
    match message["do"]:
        case "bandwidth":
            streaming = message["streaming"]
            return {"value": bench.bandwidth(name, message["working_set_bytes"], streaming)}
        case "overhead":
            return {"value": bench.overhead(name)}
        case "matmul":
            rate = bench.matmul(name)
        case _:
            rate = bench.vector_units(name)
    return {"value": rate and rate.flops_s, "path": rate.path if rate else ""}
