"""Options of evaluation: on this machine's devices, or on servers."""

from typing import Annotated, Self

import typer

from kernelwright.agent.profiled import Profilers
from kernelwright.kernelbench.cli import (
    AnyTargets,
    Baselines,
    CheckFirst,
    CompileLimit,
    EffortName,
    OwnKernels,
    check_limits,
    check_protocol,
    with_or_without_gpu,
)
from kernelwright.kernelbench.evaluator import BASELINES, COMPILE_S, LocalEvaluator, Protocol
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.options import Section
from kernelwright.kernelbench.records import Target
from kernelwright.kernelbench.remote.evaluator import connect
from kernelwright.kernelbench.remote.options import Servers, ServerToken, read_token, servers_target
from kernelwright.kernelbench.without_gpu import start_evaluator


class EvaluationOptions(Section):
    """Options of evaluation. `device`, `devices` and `chips` are resolved from the target on this machine."""

    target: AnyTargets = "cpu"
    baselines: Baselines = None
    compile_limit: CompileLimit = COMPILE_S
    own_kernels: OwnKernels = 0.0
    effort: EffortName = "full"
    check_first: CheckFirst = False
    profilers: Annotated[
        Profilers, typer.Option(help="Profilers: quick, all (Nsight Compute before advice) or none.")
    ] = "all"
    servers: Servers = ()
    server_token: ServerToken = None
    device: str = "cpu"  # the first of several
    devices: tuple[str, ...] = ()  # where there are several
    chips: tuple[str, ...] = ()  # to build GPU kernels for that are not timed, for there is no GPU

    @property
    def compared_with(self) -> tuple[str, ...]:
        """The baselines of the winner."""
        return tuple(self.baselines or BASELINES)

    @property
    def written_for(self) -> str:
        """The device that kernels are written for."""
        return "cuda:0" if self.chips else self.device

    def resolved(self) -> Self:
        """Fill in all that depends on this machine, or on the servers. Raises UsageError."""
        devices, chips = self._on_servers() if self.servers else with_or_without_gpu(self.target)
        several = devices if len(devices) > 1 else ()
        found = self.model_copy(update={"device": devices[0], "devices": several, "chips": chips})
        baselines, _ = found._protocol()
        return found.model_copy(update={"baselines": list(baselines)})

    def evaluator(self, recorded: Target | None = None) -> LocalEvaluator:
        """Start an evaluator with these options, or reach for its servers.

        `recorded`: what a run that goes on was measured on. Raises UsageError, also where servers are on
        another machine than that.
        """
        _, protocol = self._protocol()
        if self.servers:
            token = read_token(self.server_token)
            return connect(
                self.servers, token, cache=cache_folder(), effort=protocol.effort, recorded=recorded
            )
        return start_evaluator(
            cache=cache_folder(),
            protocol=protocol,
            limits=check_limits(self.compile_limit),
            devices=self.devices or (self.device,),
            chips=self.chips,
        )

    @property
    def protocol(self) -> Protocol:
        """The protocol of these options. Raises UsageError."""
        return self._protocol()[1]

    def check(self) -> None:
        """Check the options. Raises UsageError."""
        self._protocol()
        check_limits(self.compile_limit)

    def _on_servers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        target = servers_target(
            self.servers,
            self.server_token,
            target=self.target,
            own_kernels=self.own_kernels,
            compile_limit=self.compile_limit,
            check_first=self.check_first,
        )
        return (target.device,), target.chips

    def _protocol(self) -> tuple[tuple[str, ...], Protocol]:
        return check_protocol(
            self.baselines, self.own_kernels, self.effort, device=self.device, check_first=self.check_first
        )
