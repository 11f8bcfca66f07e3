"""Folder of one kernel in a package: its reference, the kernel as it stands alone, and its gradient."""

import ast
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.parsing import parsed
from kernelwright.results.dropin.apart import examined_apart
from kernelwright.results.dropin.gradient_tasks import NOTES, best, forward_source, gradient_source
from kernelwright.results.dropin.masking import masked, needs_of, products
from kernelwright.results.dropin.templating import template
from kernelwright.results.dropin.winner import Winner

_OURS = ("kernelwright", "kernelbench")  # its former name
_JIT = {
    line: own
    for ours in _OURS
    for line, own in (
        (f"from {ours} import jit", "from ..runtime import jit"),
        (f"import {ours}.jit as jit", "from ..runtime import jit"),
        (f"from {ours}.jit import compile_cpp", "from ..runtime.jit import compile_cpp"),
        (f"from {ours}.jit import compile_cuda", "from ..runtime.jit import compile_cuda"),
    )
}


_ARGUMENTS = "\n\nfrom .reference import get_init_inputs  # noqa: E402\n"  # a gradient's model takes none


@dataclass(frozen=True)
class PackagedKernel:
    """A kernel for a package.

    `layers`: the classes it replaces, each with {reference's parameter: layer's} where these differ;
    `functions`: those it replaces, as module.name, of tasks without parameters; of tasks with parameters that
    of the layers' output; `constants`: arguments that
    these are called with beside tensors; `backward`: verified kernels for `gradient_tasks`; `slower`: modes
    in which it is not called, such as "training, compiled".
    """

    name: str
    winner: Winner
    layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    functions: Sequence[str] = ()
    backward: Sequence[Winner] = ()
    constants: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    slower: Sequence[str] = ()


@dataclass(frozen=True)
class KernelFolder:
    """Writer of a kernel's folder.

    `libraries`: of the package, with their `functions` by name, and the `chips` that each of CUDA C++ is for.
    """

    chosen: PackagedKernel
    folder: Path
    libraries: Path
    functions: dict[str, Any]
    chips: list[tuple[str, ...]]
    licence: str
    device: str

    def write(self) -> tuple[dict[str, Any], Any]:
        """Write the files; return what metadata.json says, and the examination. Raises UsageError."""
        chosen, folder = self.chosen, self.folder
        winner = chosen.winner
        examined = examined_apart(winner.task, winner.candidate, device=self.device)
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "reference.py").write_text(winner.task.source)
        (folder / "kernel.py").write_text(_standing_alone(winner.candidate.source) + _ARGUMENTS)
        self._keep(examined)
        backward, limits = self._backward(examined)
        if unknown := sorted(
            {name for each in chosen.layers.values() for name in each} - {*examined.parameters}
        ):
            raise UsageError(
                f"{winner.task.id} has no parameter {', '.join(unknown)}",
                f"it has {', '.join(examined.parameters) or 'none'}",
            )
        if chosen.functions and examined.parameters:
            _check_of_output(chosen, winner.task.id)
        content = [p.read_bytes() for p in sorted(folder.glob("*.py"))]
        digest = hashlib.sha256(b"\0".join([*content, json.dumps(examined.inputs).encode()])).hexdigest()[:12]
        speedup = winner.evaluation.speedup.eager if winner.evaluation.speedup else None
        words = {
            "name": chosen.name,
            "layers": chosen.layers,
            "functions": chosen.functions,
            "constants": chosen.constants,  # that functions are called with, by name
            "operator": f"{chosen.name}_{digest}",
            "parameters": examined.parameters,
            "inputs": examined.inputs,
            "weights": examined.weights,
            "outputs": examined.outputs,
            "rows": examined.rows,
            "limits": limits,  # of free sizes
            "one_size": examined.one_size,  # why there are none, though it was verified at several
            "flops": examined.flops,
            "backward": backward,
            "no_gradient": examined.no_gradient,
            "under_autocast": examined.under_autocast,
            "relies_on": examined.relies_on,
            "slower": chosen.slower,  # modes in which it is not called
            "provenance": {
                "task": winner.task.id,
                "task_sha256": winner.task.sha256,
                "candidate_sha256": winner.candidate.sha256,
                "author": winner.candidate.author,
                "language": winner.candidate.language,
                "verified_on": winner.verified_on,
                "run": winner.command,
                "kernelwright": winner.kernelwright,
                "speedup": f"{speedup.median:.2f} [{speedup.low:.2f}, {speedup.high:.2f}]"
                if speedup
                else "unknown",
                "licence": self.licence,
                "evaluation": winner.evaluation.model_dump(mode="json", by_alias=True),
            },
        }
        return json.loads(json.dumps(words)), examined

    def _backward(self, examined: Any) -> tuple[dict[str, Any] | None, dict[str, tuple[int, int | None]]]:
        """Return what metadata.json says of the gradient, and the limits of free sizes with its kernels."""
        chosen, folder, limits = self.chosen, self.folder, examined.limits
        if not examined.gradients:
            return None, limits
        saves: list[dict[str, Any]] = []
        gradient: Mapping[str, Any] = best(examined, "saved")
        if chosen.backward:
            gradient, own, training = _chosen_gradient(chosen, examined)
            if own is not None:
                # A sum's gradient is what came in, of which operators make a copy where they must.
                file = folder / "backward.py"
                kernel = self._embedded(own, file, fresh=False)
                limits = _common(limits, kernel, own)
            if training is not None:
                file = folder / "training.py"
                kernel = self._embedded(training, file)
                limits, made = _common(limits, kernel, training), kernel.outputs
                file.write_text(file.read_text() + _ARGUMENTS)
                for name, each in zip(gradient["saves"], made[len(examined.outputs) :], strict=True):
                    saves.append({**each, "name": name})
        lines, takes = gradient["lines"], gradient["takes"]
        text = template("backward.py").render(
            kernel=chosen.name, note=NOTES[gradient["way"]], takes=takes, lines=masked(lines)
        )
        has_kernel = (folder / "backward.py").exists()
        (folder / ("partial_backward.py" if has_kernel else "backward.py")).write_text(text)
        words = {
            "way": "kernel" if has_kernel else gradient["way"],
            "of": examined.differentiated,
            "takes": takes,
            "uses": gradient["uses"],
            "saves": saves,
            "products": products(lines, gradient["products"]),
            "needs": needs_of(lines, gradient["uses"]),
        }
        return words, limits

    def _embedded(self, winner: Winner, file: Path, fresh: bool = True) -> Any:
        """Write a kernel in the package's form; return its examination. Raises UsageError."""
        if winner.device not in ("", self.device):
            raise UsageError(
                f"{winner.task.id} is in {winner.candidate.language}, unlike the kernel whose gradient it is",
                "run that task in the same language",
            )
        found = examined_apart(winner.task, winner.candidate, fresh, trained=False, device=self.device)
        self._keep(found)
        file.write_text(_standing_alone(winner.candidate.source))
        return found

    def _keep(self, examined: Any) -> None:
        """Keep what was built for a kernel."""
        for each in examined.libraries:
            for end, path in each.files.items():
                shutil.copyfile(path, self.libraries / f"{each.key}.{end}")
            self.functions[each.key] = each.functions
            if each.chips:
                self.chips.append(each.chips)


def _check_of_output(chosen: PackagedKernel, task: str) -> None:
    """Raise UsageError unless the kernel is one of torch's functions of the output of linear layers."""
    function = chosen.functions[0]
    if not chosen.layers:
        raise UsageError(
            f"{task} has parameters, which {function} cannot have",
            "give a task whose forward takes all tensors, or the --layer whose output the function takes",
        )
    if {layer.rpartition(".")[2] for layer in chosen.layers} != {"Linear"}:
        raise UsageError(
            f"{task} computes {function} of the output of {' and '.join(chosen.layers)}",
            "use --layer torch.nn.Linear, whose output can wait",
        )
    if len(chosen.functions) > 1 or not function.startswith("torch."):
        raise UsageError(
            f"{task} computes {function} of a layer's output, which must be one function of torch's",
            "use --function torch.nn.functional.cross_entropy",
        )


def _common(
    limits: Mapping[str, tuple[int, int | None]], found: Any, winner: Winner
) -> dict[str, tuple[int, int | None]]:
    """Return the free sizes that another kernel of the same package is for, too."""
    if limits.keys() != found.limits.keys() and limits:
        why = found.one_size or "its task has one size, or others"
        raise UsageError(
            f"{winner.task.id} does not serve any {', '.join(limits)}, as the forward does: {why}",
            "write that task with `kernelwright gradient` again, and run it with its workload",
        )
    common = {}
    for name, (least, most) in limits.items():
        first, last = found.limits[name]
        ends = [each for each in (most, last) if each is not None]
        common[name] = (max(least, first), min(ends, default=None))
    return common


def _chosen_gradient(
    chosen: PackagedKernel, examined: Any
) -> tuple[Mapping[str, Any], Winner | None, Winner | None]:
    """Return the gradient that has kernels, its kernel, and that of the forward that saves tensors for it."""
    task = chosen.winner.task
    own = {winner.task.source.strip(): winner for winner in chosen.backward}
    for gradient in examined.gradients:
        if gradient["way"] == "unit":  # of which the forward is all
            if training := own.get(forward_source(task, examined, gradient).strip()):
                return gradient, None, training
            continue
        found = own.get(gradient_source(task, examined, gradient).strip())
        if found is None:
            continue
        if not gradient["saves"]:
            return gradient, found, None
        if training := own.get(forward_source(task, examined, gradient).strip()):
            return gradient, found, training
        raise UsageError(
            f"{found.task.id} takes tensors that no kernel of {task.id} saves",
            "write that task with `kernelwright gradient --forward`, and run both in one run",
        )
    named = ", ".join(each.task.id for each in chosen.backward)
    raise UsageError(
        f"{named} is not the gradient of {task.id}",
        "write its gradient with `kernelwright gradient`, and run that",
    )


def _standing_alone(source: str) -> str:
    """Return the candidate with the package's loader instead of kernelwright's.

    Raises UsageError if it imports more of kernelwright than that.
    """
    lines, tree = source.splitlines(), parsed(source)
    for node in ast.walk(tree):
        names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
        module = getattr(node, "module", None) or ""
        if not any(name.partition(".")[0] in _OURS for name in (module, *names)):
            continue
        assert isinstance(node, ast.Import | ast.ImportFrom)
        first, last = node.lineno - 1, node.end_lineno
        known = _JIT.get(" ".join(lines[first:last])) if node in tree.body else None
        if known is None:
            raise UsageError(
                f"unsupported import in the kernel: {lines[first].strip()!r}",
                f"use {next(iter(_JIT))!r}",
            )
        lines[first:last] = [known]
    return "\n".join([*lines, ""])
