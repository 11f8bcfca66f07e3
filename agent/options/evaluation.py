"""Options of evaluation: on this machine's devices, on servers, or on a cluster."""

from functools import partial
from typing import Annotated, Self

import typer

from kernelwright.agent.cluster_slot import started_slot
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
from kernelwright.kernelbench.remote.cluster.evaluator import on_cluster
from kernelwright.kernelbench.remote.cluster.nodes import attach
from kernelwright.kernelbench.remote.evaluator import connect
from kernelwright.kernelbench.remote.options import (
    Cluster,
    Servers,
    ServerToken,
    check_place,
    cluster_target,
    read_token,
    servers_target,
)
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
    cluster: Cluster = None
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

    @property
    def elsewhere(self) -> bool:
        """True if nothing is timed on this machine, or by another process of it."""
        return bool(self.servers) or self.cluster is not None

    def resolved(self) -> Self:
        """Fill in all that depends on this machine, the servers or the cluster. Raises UsageError."""
        check_place(self.servers, self.cluster)
        if self.cluster is not None:
            device, chips = cluster_target(self.cluster, self.target)
            devices: tuple[str, ...] = (device,)
        else:
            devices, chips = self._on_servers() if self.servers else with_or_without_gpu(self.target)
        several = devices if len(devices) > 1 else ()
        found = self.model_copy(update={"device": devices[0], "devices": several, "chips": chips})
        baselines, _ = found._protocol()
        return found.model_copy(update={"baselines": list(baselines)})

    def evaluator(self, recorded: Target | None = None) -> LocalEvaluator:
        """Start an evaluator with these options, or reach for its servers or its cluster.

        `recorded`: what a run that goes on was measured on. Raises UsageError, also where servers or nodes
        are other machines than that.
        """
        _, protocol = self._protocol()
        if self.servers:
            token = read_token(self.server_token)
            return connect(
                self.servers, token, cache=cache_folder(), effort=protocol.effort, recorded=recorded
            )
        limits = check_limits(self.compile_limit)
        if self.cluster is not None:
            attach(self.cluster)
            start = partial(
                started_slot,
                device=self.device,
                chips=self.chips,
                protocol=protocol,
                limits=limits,
                profilers=self.profilers,
            )
            return on_cluster(start, device=self.device, cache=cache_folder(), recorded=recorded)
        return start_evaluator(
            cache=cache_folder(),
            protocol=protocol,
            limits=limits,
            devices=self.devices or (self.device,),
            chips=self.chips,
        )

    @property
    def protocol(self) -> Protocol:
        """The protocol of these options. Raises UsageError."""
        return self._protocol()[1]

    def check(self) -> None:
        """Check the options. Raises UsageError."""
        check_place(self.servers, self.cluster)
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
