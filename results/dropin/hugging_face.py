"""Repositories of Hugging Face's `kernels`, as release 0.17 of the library reads them.

A build lies in `build/VARIANT/`, whose name says where it can be loaded. What is Python alone (Triton, calls
of torch) is `torch-cpu` or `torch-cuda`, for any release. Machine code is for one release of torch, a kind of
device, an architecture and a system: `torch213-cxx11-cpu-x86_64-linux`, or for CUDA, whose release then names
the oldest one with the same major number whose drivers load it, `torch213-cxx11-cu130-x86_64-linux`.
https://huggingface.co/docs/kernels/main/en/kernel-requirements
"""

import base64
import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.chips import nvrtc

_BUILDS = "build"
_LEAST = "0.17.0"  # release of `kernels` that these are for


def place(whole: Path) -> Path:
    """Return the folder of the one build in a repository, which the package lies in."""
    (found,) = (whole / _BUILDS).iterdir()
    return found


def new_place(whole: Path) -> Path:
    """Return the folder of a build that is not named yet."""
    return whole / _BUILDS / "new"


def finish(whole: Path, metadata: Mapping[str, Any], version: int, licence: str) -> None:
    """Name the build of a repository whose package has this `metadata`, and write the build's own."""
    libraries = (place(whole) / metadata["name"] / "libraries").iterdir()
    built = any(file.suffix in (".so", ".cubin") for file in libraries)
    folder = place(whole).rename(whole / _BUILDS / variant(metadata["device"], metadata["torch"], built))
    name, device = metadata["name"], metadata["device"]
    content = (folder / name / "metadata.json").read_bytes()
    backend: dict[str, Any] = {"type": device}
    if metadata["capabilities"]:
        backend["archs"] = [f"{major}.{minor}" for major, minor in metadata["capabilities"]]
    words = {
        "id": f"{name}_{device}_{hashlib.sha256(content).hexdigest()[:10]}",
        "name": name.replace("_", "-"),
        "version": version,
        "kernels-minver": _LEAST,
        "license": licence,
        "python-depends": [],
        "backend": backend,
        "digest": {"algorithm": "sha256", "files": _digests(folder)},
    }
    (folder / "metadata.json").write_text(json.dumps(words, indent=1) + "\n")


def variant(device: str, torch: str, built: bool) -> str:
    """Return the name of a build: for a kind of device, "cpu" or "cuda", by this release of torch.

    `built`: it has machine code of this machine, or cubins of the NVRTC that is installed here.
    """
    if not built:
        return f"torch-{device}"
    major, minor, *_ = torch.split(".")
    abi = "-cxx11" if sys.platform == "linux" else ""
    kind = f"cu{nvrtc.version().replace('.', '')}" if device == "cuda" else device
    return f"torch{major}{minor}{abi}-{kind}-{platform.machine()}-{platform.system().lower()}"


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in base64, as `kernels verify` compares it."""
    return {
        file.relative_to(folder).as_posix(): base64.b64encode(
            hashlib.sha256(file.read_bytes()).digest()
        ).decode()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
