"""Options that say where rewards are measured: on this machine, on servers, or on a cluster."""

import hashlib
from typing import TYPE_CHECKING

from kernelwright.kernelbench.cli import TargetNames
from kernelwright.kernelbench.devices import devices_of
from kernelwright.kernelbench.evaluator import LocalEvaluator
from kernelwright.kernelbench.options import Section
from kernelwright.kernelbench.remote.options import Cluster, Servers, ServerToken

if TYPE_CHECKING:
    from kernelwright.agent.options.evaluation import EvaluationOptions


class RewardPlaceOptions(Section):
    """Place where kernels are built, verified and timed."""

    target: TargetNames = "cpu"
    servers: Servers = ()
    server_token: ServerToken = None
    cluster: Cluster = None

    def resolved(self) -> "EvaluationOptions":
        """Return the options of evaluation. Raises UsageError, also where nothing would be timed."""
        from kernelwright.agent.options.evaluation import EvaluationOptions

        if not self.servers:
            devices_of(self.target)  # refuses a chip that kernels are only built for
        return EvaluationOptions(
            target=self.target,
            servers=self.servers,
            server_token=self.server_token,
            cluster=self.cluster,
            profilers="quick",
        ).resolved()

    def machine(self, evaluator: LocalEvaluator) -> dict[str, str]:
        """Return the sha256 of another machine's fingerprint, by name: what is resumed is resumed there."""
        if not self.servers and self.cluster is None:
            return {}
        name = "the machine of " + ("--evaluator" if self.servers else "--cluster")
        mark = evaluator.target.fingerprint.model_dump_json()
        return {name: hashlib.sha256(mark.encode()).hexdigest()}
