"""Writer of packages: kernels, their runtime, tests and benchmark, with a hash of every file."""

import ast
import hashlib
import json
import keyword
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.records import Task
from kernelwright.results.dropin.apart import examined_apart
from kernelwright.results.dropin.format import UNSTATED, Format
from kernelwright.results.dropin.gradient_tasks import NOTES, best, forward_source, gradient_source
from kernelwright.results.dropin.layer_names import check_functions, check_layers
from kernelwright.results.dropin.masking import masked, needs_of, products
from kernelwright.results.dropin.templating import template
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.store.encoding import kernelwright_version

_RUNTIME = Path(__file__).parent / "runtime"
_TAKEN = ("apply", "benchmark", "kernelized", "layers", "libraries", "remove", "report", "runtime", "tests")
_VERSION = "1"  # of the packages' form


@dataclass(frozen=True)
class PackagedKernel:
    """A kernel for a package.

    `layers`: the classes it replaces, each with {reference's parameter: layer's} where these differ;
    `functions`: those it replaces, as module.name, of tasks without parameters; `constants`: arguments that
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


def write(
    chosen: Sequence[PackagedKernel],
    out: Path,
    name: str,
    form: Format = Format.torch,
    measure: bool = True,
    inside: Task | None = None,
    licence: str = UNSTATED,
    where_faster: bool = False,
) -> dict[str, Any]:
    """Write the package `name` into the new folder `out`; return the content of its metadata.json.

    `measure`: time it, eager and compiled, in its wrapper. `inside`: also time a whole model, with and
    without it. `licence`: of the package's content. `where_faster`: layers call a kernel only in modes in
    which it was measured to be faster.
    Raises UsageError for a kernel that cannot be exported, for a bad name and if a model to be timed has no
    layer that is replaced, StorageError if `out` is not empty or cannot be written.
    """
    _check_name(name, "package")
    for each in chosen:
        _check_name(each.name, "kernel")
    if repeated := {each.name for each in chosen if [c.name for c in chosen].count(each.name) > 1}:
        raise UsageError(
            f"two kernels have the name {', '.join(sorted(repeated))}", "give one another --name"
        )
    check_layers([layer for each in chosen for layer in each.layers], form)
    check_functions([path for each in chosen for path in each.functions])
    device = _device_of(chosen)
    if inside is not None and not is_here(device):
        raise UsageError("--inside times kernels for a GPU, and there is none", "leave it out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"{out} is not empty", "choose a new folder")
    beside = out.absolute().parent
    try:
        beside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=beside) as temporary:
            whole = Path(temporary) / "package"
            metadata = _written(chosen, whole, name, form, licence, device)
            if (measure or where_faster) and is_here(device):
                _measure(metadata, whole, name, form, where_faster)
            if inside is not None:
                _measure_inside(metadata, whole, name, form, inside)
            if out.exists():
                out.rmdir()
            whole.rename(out)
    except OSError as error:
        raise StorageError(
            f"{out} cannot be written ({error.strerror or error})", "choose another --out"
        ) from error
    return metadata


def _device_of(chosen: Sequence[PackagedKernel]) -> str:
    """Return the kind of device of all kernels, "cpu" or "cuda". Raises UsageError for several."""
    kinds = {each.winner.device: each.winner for each in chosen if each.winner.device}
    if len(kinds) > 1:
        named = " and ".join(f"{each.task.id} in {each.candidate.language}" for each in kinds.values())
        raise UsageError(f"a package has kernels for one device, not {named}", "export them separately")
    if not kinds:  # torch calls, whose gradients may have kernels
        return next((winner.device for each in chosen for winner in each.backward if winner.device), "cpu")
    return next(iter(kinds))


def is_here(device: str) -> bool:
    """Return True if this machine has a device of the kind, to time kernels on."""
    import torch

    return device == "cpu" or torch.cuda.is_available()


def _written(
    chosen: Sequence[PackagedKernel], whole: Path, name: str, form: Format, licence: str, device: str
) -> dict[str, Any]:
    place = _place(whole, form, device)
    package = place / name
    shutil.copytree(_RUNTIME, package / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    of_device = package / "runtime" / "device.py"
    of_device.write_text(of_device.read_text().replace('KIND = "cpu"', f'KIND = "{device}"', 1))
    (package / "libraries").mkdir()
    functions: dict[str, Any] = {}
    kernels = []
    about: dict[str, Any] = {}
    capabilities: set[tuple[int, ...]] = set()  # of the GPU
    for each in chosen:
        words, found = _kernel(each, package / each.name, package / "libraries", functions, licence, device)
        kernels.append(words)
        capabilities |= {found.capability} if found.capability else set()
        about = {
            "torch": found.torch,
            "cpu_flags": found.cpu_flags if functions else (),  # of this machine, which built them
            "capabilities": sorted(capabilities),
        }
    (package / "libraries" / "functions.json").write_text(json.dumps(functions, indent=1) + "\n")
    summary = f"Verified kernels for PyTorch: {', '.join(each.name for each in chosen)}."
    (package / "tests").mkdir()
    (package / "tests" / "__init__.py").write_text("")
    for file in ("test_drop_in.py", "test_in_training.py"):
        free = any(each["limits"] for each in kernels)
        (package / "tests" / file).write_text(template(file).render(name=name, free=free))
    if form.module:
        (package / form.module).write_text(_for_framework(chosen, name, form))
    (package / "benchmark.py").write_text(template("benchmark.py").render(name=name))
    metadata = {
        "schema": 1,
        "name": name,
        "summary": summary,
        "kernelwright": kernelwright_version(),
        "device": device,
        **about,
        "kernels": kernels,
    }
    digest = _seal(package, metadata)
    if form is Format.hf:
        (place / "metadata.json").write_text(_for_hugging_face(name, digest, licence, device))
    else:
        packages = sorted(".".join(p.parent.relative_to(whole).parts) for p in package.rglob("__init__.py"))
        (whole / "pyproject.toml").write_text(
            template("pyproject.toml").render(
                name=name,
                version=f"{_VERSION}.0+{digest[:10]}",
                summary=summary,
                torch=".".join(about["torch"].split(".")[:2]),
                packages=[*packages, f"{name}.libraries"],
            )
        )
    layers = [layer.rpartition(".")[2] for each in chosen for layer in each.layers]
    dtypes = [words["dtype"] for each in kernels for words in each["inputs"] if "float" in words["dtype"]]
    (whole / "README.md").write_text(
        template("readme.md").render(
            **metadata,
            form=form,
            layer=(layers or ["LAYER"])[0],
            functions=[layer.lower() for layer in layers],
            dtype=(dtypes or ["float32"])[0],
        )
    )
    return metadata


def _place(whole: Path, form: Format, device: str) -> Path:
    """Return the folder that holds the package."""
    return whole / "build" / f"torch-{device}" if form is Format.hf else whole


def _measure(metadata: dict[str, Any], whole: Path, name: str, form: Format, where_faster: bool) -> None:
    """Add the benchmark's results to the package's metadata, and the modes in which kernels are slower."""
    place = _place(whole, form, metadata["device"])
    metadata["measured"] = _measured(place, name)
    if where_faster:
        for kernel in metadata["kernels"]:
            modes = metadata["measured"].get(kernel["name"], {}).items()
            kernel["slower"] = [mode for mode, found in modes if found["speedup"] < 1]
    _seal(place / name, metadata)


def _measure_inside(metadata: dict[str, Any], whole: Path, name: str, form: Format, inside: Task) -> None:
    """Add the results of the package's benchmark inside a model to its metadata."""
    place = _place(whole, form, metadata["device"])
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(inside.source)
        file.flush()
        metadata["measured_inside"] = {"task": inside.id, **_measured(place, name, file.name)}
    _seal(place / name, metadata)


def _seal(package: Path, metadata: dict[str, Any]) -> str:
    """Write metadata.json with the hash of every file, and __init__.py with the hash of metadata.json."""
    own = {package / "metadata.json", package / "__init__.py"}
    files = sorted(
        p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts and p not in own
    )
    metadata["files"] = {
        p.relative_to(package).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }
    text = json.dumps(metadata, indent=1) + "\n"
    (package / "metadata.json").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    names = [each["name"] for each in metadata["kernels"]]
    (package / "__init__.py").write_text(
        template("init.py").render(**{**metadata, "kernels": names}, metadata_sha256=digest)
    )
    return digest


def _for_framework(chosen: Sequence[PackagedKernel], name: str, form: Format) -> str:
    """Return the framework's module for the kernels that replace layers; the others are plain functions."""
    named: dict[str, list[str]] = {}
    for each in chosen:
        for layer in each.layers:
            named.setdefault(layer, []).append(each.name)
    classes = [layer.rpartition(".")[2] for layer in named]
    if twice := [name for name in classes if classes.count(name) > 1]:
        raise UsageError(f"two layers have the name {twice[0]}", "export each into a separate package")
    layers = [
        {"module": module, "cls": cls, "function": cls.lower(), "kernels": kernels}
        for (module, _, cls), kernels in ((layer.rpartition("."), k) for layer, k in named.items())
    ]
    return template(form.module).render(name=name, layers=layers, window=form.window)


def _for_hugging_face(name: str, digest: str, licence: str, device: str) -> str:
    """Return the metadata.json that `kernels` 0.17 reads."""
    words = {
        "id": f"{name}_{device}_{digest[:10]}",
        "name": name.replace("_", "-"),
        "version": int(_VERSION),
        "license": licence,
        "python-depends": [],
        "backend": {"type": device},
    }
    return json.dumps(words, indent=1) + "\n"


def _measured(folder: Path, name: str, *inside: str) -> Any:
    """Run the package's benchmark in a separate process and return its results."""
    command = [sys.executable, "-W", "ignore", "-m", f"{name}.benchmark", "--json", *inside]
    # Processes that compile import torch first, which takes longer than a kernel's few files.
    alone = {} if inside else {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **alone}
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        if inside:
            raise UsageError(
                f"the model cannot be timed: {last[0]}", "use another --inside, or another --layer"
            )
        raise UsageError(
            f"the package cannot be used: {last[0]}", "this is a bug in kernelwright: please report it"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def _kernel(
    chosen: PackagedKernel,
    folder: Path,
    libraries: Path,
    functions: dict[str, Any],
    licence: str,
    device: str,
) -> tuple[dict[str, Any], Any]:
    winner = chosen.winner
    examined = examined_apart(winner.task, winner.candidate, device=device)
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "reference.py").write_text(winner.task.source)
    (folder / "kernel.py").write_text(_standing_alone(winner.candidate.source) + _ARGUMENTS)
    _keep(examined.libraries, libraries, functions)
    backward, limits = _backward(chosen, examined, folder, libraries, functions, device)
    if unknown := sorted({name for each in chosen.layers.values() for name in each} - {*examined.parameters}):
        raise UsageError(
            f"{winner.task.id} has no parameter {', '.join(unknown)}",
            f"it has {', '.join(examined.parameters) or 'none'}",
        )
    if chosen.functions and examined.parameters:
        raise UsageError(
            f"{winner.task.id} has parameters, which {chosen.functions[0]} cannot have",
            "give a task whose forward takes all tensors",
        )
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
            "licence": licence,
            "evaluation": winner.evaluation.model_dump(mode="json", by_alias=True),
        },
    }
    return json.loads(json.dumps(words)), examined


def _backward(
    chosen: PackagedKernel,
    examined: Any,
    folder: Path,
    libraries: Path,
    functions: dict[str, Any],
    device: str,
) -> tuple[dict[str, Any] | None, dict[str, tuple[int, int | None]]]:
    """Return what metadata.json says of the gradient, and the limits of free sizes with its kernels."""
    limits = examined.limits
    if not examined.gradients:
        return None, limits
    saves: list[dict[str, Any]] = []
    gradient: Mapping[str, Any] = best(examined, "saved")
    if chosen.backward:
        gradient, own, training = _chosen_gradient(chosen, examined)
        # A sum's gradient is what came in, of which operators make a copy where they must.
        file = folder / "backward.py"
        kernel = _embedded(own, file, libraries, functions, device, fresh=False)
        limits = _common(limits, kernel, own)
        if training is not None:
            file = folder / "training.py"
            kernel = _embedded(training, file, libraries, functions, device)
            limits, made = _common(limits, kernel, training), kernel.outputs
            file.write_text(file.read_text() + _ARGUMENTS)
            for name, each in zip(gradient["saves"], made[len(examined.outputs) :], strict=True):
                saves.append({**each, "name": name})
    lines, takes = gradient["lines"], gradient["takes"]
    text = template("backward.py").render(
        kernel=chosen.name, note=NOTES[gradient["way"]], takes=takes, lines=masked(lines)
    )
    (folder / ("partial_backward.py" if chosen.backward else "backward.py")).write_text(text)
    words = {
        "way": "kernel" if chosen.backward else gradient["way"],
        "of": examined.differentiated,
        "takes": takes,
        "uses": gradient["uses"],
        "saves": saves,
        "products": products(lines, gradient["products"]),
        "needs": needs_of(lines, gradient["uses"]),
    }
    return words, limits


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
) -> tuple[Mapping[str, Any], Winner, Winner | None]:
    """Return the gradient that has kernels, its kernel, and that of the forward that saves tensors for it."""
    task = chosen.winner.task
    own = {winner.task.source.strip(): winner for winner in chosen.backward}
    for gradient in examined.gradients:
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


def _embedded(
    winner: Winner, file: Path, libraries: Path, functions: dict[str, Any], device: str, fresh: bool = True
) -> Any:
    """Write a kernel in the package's form; return its examination. Raises UsageError for another device."""
    if winner.device not in ("", device):
        raise UsageError(
            f"{winner.task.id} is in {winner.candidate.language}, unlike the kernel whose gradient it is",
            "run that task in the same language",
        )
    found = examined_apart(winner.task, winner.candidate, fresh, trained=False, device=device)
    _keep(found.libraries, libraries, functions)
    file.write_text(_standing_alone(winner.candidate.source))
    return found


def _keep(found: Sequence[Any], libraries: Path, functions: dict[str, Any]) -> None:
    for each in found:
        shutil.copyfile(each.path, libraries / f"{each.key}.so")
        functions[each.key] = each.functions


_OURS = ("kernelwright", "kernelbench")  # its former name
_JIT = {
    line: own
    for ours in _OURS
    for line, own in (
        (f"from {ours} import jit", "from ..runtime import libraries as jit"),
        (f"import {ours}.jit as jit", "from ..runtime import libraries as jit"),
        (f"from {ours}.jit import compile_cpp", "from ..runtime.libraries import compile_cpp"),
    )
}


_ARGUMENTS = "\n\nfrom .reference import get_init_inputs  # noqa: E402\n"  # a gradient's model takes none


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


def _check_name(name: str, what: str) -> None:
    odd = not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_")
    if odd or (what == "kernel" and name in _TAKEN):
        raise UsageError(f"invalid name of a {what}: {name!r}", "use lower-case letters, digits and _")
    if what == "package" and find_spec(name) is not None:
        raise UsageError(f"a package {name} is already installed", "choose another --name")
