"""A device as a target: what it is, and what it can do at best."""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from kernelwright.kernelbench import machine_cache
from kernelwright.kernelbench.chips import cards
from kernelwright.kernelbench.devices import target_names, visible_name
from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.timing.clocks import gpu_count
from kernelwright.kernelbench.machine import allocatable_bytes, cpu_hardware, fingerprint
from kernelwright.kernelbench.records import Ceilings, Fingerprint, Language, Target

_MEASURED, _PAUSE_S = 3, 0.5  # times, the first time
_MOST_MEASURED, _MOST_S = 8, 20.0  # times, and seconds, where others were in the way each time before
_SHARE = 4  # of the memory that can be had, one part in so many is used to measure it
_WORKER_BYTES = 1 << 30  # that a worker takes beside
_DESCRIBED_S = 120.0  # seconds in which a driver answers, which may first have to set up the GPU
_IN_USE_BYTES = 1 << 30  # of a GPU, by others: as much as a display takes is not worth a word
_log = logging.getLogger("kernelwright")


def detect_target(pool: WorkerPool, device: str = "cpu", again: bool = False) -> Target:
    """`device`, "cpu" or "cuda:0", as a target.

    Its ceilings are measured once and kept beside the build cache; where others were in the way, or
    memory was lacking, once more when they are next asked for. With `again` they are measured again. The
    higher of old and new is kept. Raises MissingPrerequisite without such a GPU, StorageError where what was
    kept is damaged.
    """
    if device == "cpu":
        mark, facts = fingerprint(pool.threads), cpu_hardware()
    else:
        mark, facts = _gpu(pool, device, alone=not again)
    kind = "ceilings" if device == "cpu" else f"ceilings-{visible_name(device)}"  # no two GPUs are alike
    file = machine_cache.file_for(pool.cache, kind, mark)
    ceilings = machine_cache.read(file, Ceilings)
    if ceilings is None:
        ceilings = _measure(pool, device, mark)
        machine_cache.write(file, ceilings)
    elif again or ceilings.busy or not ceilings.complete:
        ceilings = ceilings.or_higher(_measure_once(pool, device, mark))
        machine_cache.write(file, ceilings)
    return Target(
        device=device,
        languages=_languages(device, mark),
        ceilings=ceilings,
        fingerprint=mark,
        hardware=facts,
    )


def _languages(device: str, mark: Fingerprint) -> tuple[Language, ...]:
    if device != "cpu":
        return ("cuda", "triton", "torch")
    return ("torch",) if mark.compiler == "none" else ("cpp", "torch")


def _gpu(pool: WorkerPool, device: str, alone: bool) -> tuple[Fingerprint, tuple[str, ...]]:
    """Fingerprint of a GPU, and of the host that launches its kernels, and facts of the GPU.

    `alone`: no session is up that would have memory there.
    """
    found = _existing_gpu(pool)
    if (shared := in_use(found)) and alone:
        _log.warning(f"{device}: {shared}; end them, or the times say little (`nvidia-smi` lists them)")
    host = fingerprint(pool.threads)
    mark = host.model_copy(
        update={
            "chip": _chip(found),
            "memory_bytes": found["memory_bytes"],
            "last_level_cache_bytes": found["cache_bytes"],
            "system": f"{host.system}, {host.chip}",
            "compiler": f"CUDA {found['cuda']}",
        }
    )
    return mark, cards.hardware(found["capability"], found["multiprocessors"])


def describe_chip(pool: WorkerPool) -> str:
    """Return the name of a pool's GPU. Raises MissingPrerequisite without such a GPU."""
    return _chip(_existing_gpu(pool))


def _existing_gpu(pool: WorkerPool) -> dict[str, Any]:
    found = describe_gpu(pool)
    if "error" in found:
        error, fix = _beyond_the_last(pool.device) or (found["error"], found["fix"])
        raise MissingPrerequisite(f"no target {pool.device}: {error}", fix)
    return found


def _beyond_the_last(device: str) -> tuple[str, str] | None:
    """Return what is wrong, and the fix, with a GPU whose number is that of none; None if that is not known.

    Workers, who see one GPU only, could not say it.
    """
    name, count = visible_name(device), gpu_count()
    if not count or not name.isdigit() or int(name) < count:
        return None
    given = "CUDA_VISIBLE_DEVICES" in os.environ
    fix = "change CUDA_VISIBLE_DEVICES" if given else f"use --target {target_names(count)}"
    return f"this machine has {count} GPU{'s' * (count != 1)}", fix


def _chip(found: Mapping[str, Any]) -> str:
    return f"{found['chip']} ({found['capability']})"


def describe_gpu(pool: WorkerPool) -> dict[str, Any]:
    """Return the answer of `gpu.serve`: "chip", "capability", "memory_bytes", …, or an "error" and its "fix".

    Raises InfrastructureError where the driver does not answer.
    """
    with pool.start("baseline", "kernelwright.kernelbench.evaluator.timing.gpu:serve") as worker:
        try:
            return worker.ask({"do": "describe", "device": pool.worker_device}, _DESCRIBED_S)
        except (WorkerDied, WorkerTimeout) as error:
            raise InfrastructureError(
                f"the driver of {pool.device} does not answer: {error}",
                "see what `nvidia-smi` and `dmesg` say",
            ) from None


def in_use(found: Mapping[str, Any]) -> str:
    """Return what others have of the memory of a GPU that was described, in words; empty if hardly any."""
    used, whole = found["in_use_bytes"], found["memory_bytes"]
    if used < _IN_USE_BYTES:
        return ""
    return f"other processes use {used / (1 << 30):.0f} of its {whole / (1 << 30):.0f} GiB"


def _measure(pool: WorkerPool, device: str, mark: Fingerprint) -> Ceilings:
    """Return the best of some measurements, as other work often runs for a second or less."""
    until = time.monotonic() + _MOST_S
    found = _measure_once(pool, device, mark)
    for number in range(1, _MOST_MEASURED):
        if number >= _MEASURED and (not found.busy or time.monotonic() > until):
            break
        time.sleep(_PAUSE_S)
        found = found.or_higher(_measure_once(pool, device, mark))
    return found


def _measure_once(pool: WorkerPool, device: str, mark: Fingerprint) -> Ceilings:
    most_bytes = (allocatable_bytes() if device == "cpu" else mark.memory_bytes) // _SHARE
    message = {
        "do": "measure",
        "device": pool.worker_device,
        "last_level_cache_bytes": mark.last_level_cache_bytes,
        "most_bytes": most_bytes,
    }
    return Ceilings.model_validate(
        _ask(pool, message, most_bytes + _WORKER_BYTES if device == "cpu" else None)
    )


def _ask(pool: WorkerPool, message: dict[str, object], memory_bytes: int | None = None) -> dict[str, Any]:
    with pool.start(
        "baseline", "kernelwright.kernelbench.evaluator.timing.ceilings:serve", memory_bytes=memory_bytes
    ) as worker:
        try:
            return worker.ask(message, 120)
        except (WorkerDied, WorkerTimeout) as error:
            raise InfrastructureError(
                f"the machine could not be measured: {error}", "free some memory"
            ) from None
