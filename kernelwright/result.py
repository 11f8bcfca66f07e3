"""Result of `kernelwright.optimize`."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from torch import nn

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Evaluation, Interval
from kernelwright.kernelbench.speed_of_light import score_in_words
from kernelwright.results.dropin.format import Format
from kernelwright.results.formatting import with_bounds


@dataclass(frozen=True, repr=False)
class Result:
    """Result of a run for one module.

    `module` is a drop-in for the module that was given: a copy with the same parameters that computes by the
    kernel where a call is like the example, and by its own forward elsewhere. It is the module itself where
    no kernel is faster than eager by its whole interval, as `reason` says.
    """

    module: nn.Module
    faster: bool  # whether `module` computes by a kernel
    reason: str  # one sentence
    evaluation: Evaluation | None  # of the best kernel; None without a correct one
    kernel: str  # source of the file that defines ModelNew; "" without a correct one
    task: str  # id
    task_source: str  # of the file in KernelBench's format
    layer: str  # the module's class, as a package names it; "" for a function
    folder: Path  # of the run: report.html, run.db, best/, tasks/

    @property
    def speedup(self) -> Interval | None:
        """The best kernel's speedup over eager PyTorch, with its 95% interval; None if it was not timed."""
        return self.evaluation.speedup.eager if self.evaluation and self.evaluation.speedup else None

    @property
    def speedup_over_compile(self) -> Interval | None:
        """The same over `torch.compile`."""
        return self.evaluation.speedup.compile if self.evaluation and self.evaluation.speedup else None

    @property
    def report(self) -> Path:
        """The page with every round and every number."""
        return self.folder / "report.html"

    def export(
        self,
        out: str | Path,
        *,
        name: str = "",
        format: str = "torch",
        layer: str | None = None,
        measure: bool = True,
        licence: str = "unstated",
    ) -> Path:
        """Write the kernel as a package that needs torch alone; return its folder, which must be new.

        `format`: torch, hf, torchtitan, megatron or vllm. `layer`: the class that the package replaces in
        models, by default the module's. `measure`: time it, eager and compiled. Raises UsageError for a
        kernel that cannot be packaged, StorageError.
        """
        from kernelwright.results.dropin.kernel_folder import PackagedKernel
        from kernelwright.results.dropin.package import write
        from kernelwright.results.dropin.winner import Winner

        if format not in [each.value for each in Format]:
            raise UsageError(f"unknown format {format!r}", f"use {', '.join(Format)}")
        winner = Winner.of(self.folder, self.task)
        replaced = self.layer if layer is None else layer
        kernel = PackagedKernel(winner.name, winner, {replaced: {}} if replaced else {})
        write([kernel], Path(out), name or winner.name, Format(format), measure, licence=licence)
        return Path(out)

    def __str__(self) -> str:
        return "\n".join(f"{name:9} {text}" for name, text in self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self._lines())
        return f"<table>{''.join(rows)}</table>"

    def _lines(self) -> list[tuple[str, str]]:
        lines = [("Task", self.task)]
        if self.evaluation is not None:
            lines.append(("Verdict", f"{self.evaluation.verdict}: {self.evaluation.reason}"))
        against = [(self.speedup, "eager"), (self.speedup_over_compile, "torch.compile")]
        said = [f"{with_bounds(found)} over {name}" for found, name in against if found is not None]
        if said:
            lines.append(("Speedup", ", ".join(said)))
        if self.evaluation is not None and (score := score_in_words(self.evaluation)):
            lines.append(("SOL score", score))
        return [*lines, ("Module", self.reason), ("Report", str(self.report))]
