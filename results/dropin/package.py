"""Writer of packages: kernels, their runtime, tests and benchmark, with a hash of every file."""

import hashlib
import json
import keyword
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.machine import usable_cpus
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.version import kernelwright_version
from kernelwright.results.dropin import hugging_face
from kernelwright.results.dropin.format import UNSTATED, Format
from kernelwright.results.dropin.kernel_folder import KernelFolder, PackagedKernel
from kernelwright.results.dropin.layer_names import check_functions, check_layers
from kernelwright.results.dropin.templating import template

_RUNTIME = Path(__file__).parent / "runtime"
_TAKEN = ("apply", "benchmark", "kernelized", "layers", "libraries", "remove", "report", "runtime", "tests")
_VERSION = "1"  # of the packages' form
_AT_ONCE = 4  # kernels on a CPU that are examined at a time, in processes of a few GiB at most


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
            for made in [*whole.rglob("__pycache__")]:
                shutil.rmtree(made)
            if form is Format.hf:
                hugging_face.finish(whole, metadata, int(_VERSION), licence)
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
    package = (hugging_face.new_place(whole) if form is Format.hf else whole) / name
    shutil.copytree(_RUNTIME, package / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    of_device = package / "runtime" / "device.py"
    of_device.write_text(of_device.read_text().replace('KIND = "cpu"', f'KIND = "{device}"', 1))
    (package / "libraries").mkdir()
    functions: dict[str, Any] = {}
    chips: list[tuple[str, ...]] = []
    kernels = []
    about: dict[str, Any] = {}

    def folder_of(each: PackagedKernel) -> tuple[dict[str, Any], Any]:
        folder, libraries = package / each.name, package / "libraries"
        return KernelFolder(each, folder, libraries, functions, chips, licence, device).write()

    with ThreadPoolExecutor(min(usable_cpus(), _AT_ONCE) if device == "cpu" else 1) as pool:
        folders = list(pool.map(folder_of, chosen))
    for words, found in folders:
        kernels.append(words)
        if found.chip:
            chips.append((found.chip,))
        about = {
            "torch": found.torch,
            "cpu_flags": found.cpu_flags if functions and device == "cpu" else (),  # of this machine
        }
    about["capabilities"] = _capabilities(chips)
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
    if form is not Format.hf:
        packages = sorted(".".join(p.parent.relative_to(whole).parts) for p in package.rglob("__init__.py"))
        (whole / "pyproject.toml").write_text(
            template("pyproject.toml").render(
                name=name,
                version=f"{_VERSION}.0+{digest[:10]}",
                summary=summary,
                torch=".".join(about["torch"].split(".")[:2]),
                packages=[*packages, f"{name}.libraries"],
                plugin=form is Format.vllm,
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


def _capabilities(chips: Sequence[tuple[str, ...]]) -> list[tuple[int, int]]:
    """Return the compute capabilities of the GPUs that all kernels are for; [] if they are for any."""
    if not chips:
        return []
    common = set(chips[0]).intersection(*chips)
    if not common:
        raise UsageError("no GPU runs all of these kernels", "export them separately")
    numbers = [int(chip.removeprefix("sm_")) for chip in common]
    return sorted(divmod(number, 10) for number in numbers)


def placed(whole: Path, form: Format) -> Path:
    """Return the folder that holds the package, in the one that was written."""
    return hugging_face.place(whole) if form is Format.hf else whole


def _measure(metadata: dict[str, Any], whole: Path, name: str, form: Format, where_faster: bool) -> None:
    """Add the benchmark's results to the package's metadata, and the modes in which kernels are slower."""
    place = placed(whole, form)
    metadata["measured"] = _measured(place, name)
    if where_faster:
        for kernel in metadata["kernels"]:
            modes = metadata["measured"].get(kernel["name"], {}).items()
            kernel["slower"] = [mode for mode, found in modes if found["speedup"] < 1]
    _seal(place / name, metadata)


def _measure_inside(metadata: dict[str, Any], whole: Path, name: str, form: Format, inside: Task) -> None:
    """Add the results of the package's benchmark inside a model to its metadata."""
    place = placed(whole, form)
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


def _check_name(name: str, what: str) -> None:
    odd = not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_")
    if odd or (what == "kernel" and name in _TAKEN):
        raise UsageError(f"invalid name of a {what}: {name!r}", "use lower-case letters, digits and _")
    # `python -m` puts the working directory first: the task's own NAME.py may lie there.
    installed = [each for each in sys.path if Path(each).resolve() != Path.cwd()]
    if what == "package" and (
        name in sys.stdlib_module_names or PathFinder.find_spec(name, installed) is not None
    ):
        raise UsageError(f"a package {name} is already installed", "choose another --name")
