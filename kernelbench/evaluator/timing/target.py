"""A device as a target: what it is, and what it can do at best."""

import time
from collections.abc import Mapping
from typing import Any

from kernelwright.kernelbench import machine_cache
from kernelwright.kernelbench.devices import visible_name
from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.timing.clocks import gpu_count
from kernelwright.kernelbench.machine import allocatable_bytes, fingerprint
from kernelwright.kernelbench.records import Ceilings, Fingerprint, Language, Target

_MEASURED, _PAUSE_S = 3, 0.5  # times, the first time
_MOST_MEASURED, _MOST_S = 8, 20.0  # times, and seconds, where others were in the way each time before
_SHARE = 4  # of the memory that can be had, one part in so many is used to measure it
_WORKER_BYTES = 1 << 30  # that a worker takes beside


def detect_target(pool: WorkerPool, device: str = "cpu", again: bool = False) -> Target:
    """`device`, "cpu" or "cuda:0", as a target.

    Its ceilings are measured once and kept beside the build cache; where others were in the way, or
    memory was lacking, once more when they are next asked for. With `again` they are measured again. The
    higher of old and new is kept. Raises MissingPrerequisite without such a GPU, StorageError where what was
    kept is damaged.
    """
    mark = fingerprint(pool.threads) if device == "cpu" else _gpu(pool, device)
    kind = "ceilings" if device == "cpu" else f"ceilings-{visible_name(device)}"  # no two GPUs are alike
    file = machine_cache.file_for(pool.cache, kind, mark)
    ceilings = machine_cache.read(file, Ceilings)
    if ceilings is None:
        ceilings = _measure(pool, device, mark)
        machine_cache.write(file, ceilings)
    elif again or ceilings.busy or not ceilings.complete:
        ceilings = ceilings.or_higher(_measure_once(pool, device, mark))
        machine_cache.write(file, ceilings)
    return Target(device=device, languages=_languages(device, mark), ceilings=ceilings, fingerprint=mark)


def _languages(device: str, mark: Fingerprint) -> tuple[Language, ...]:
    if device != "cpu":
        return ("cuda", "triton", "torch")
    return ("torch",) if mark.compiler == "none" else ("cpp", "torch")


def _gpu(pool: WorkerPool, device: str) -> Fingerprint:
    """Fingerprint of a GPU, and of the host that launches its kernels."""
    found = _existing_gpu(pool, device)
    host = fingerprint(pool.threads)
    return host.model_copy(
        update={
            "chip": _chip(found),
            "memory_bytes": found["memory_bytes"],
            "last_level_cache_bytes": found["cache_bytes"],
            "system": f"{host.system}, {host.chip}",
            "compiler": f"CUDA {found['cuda']}",
        }
    )


def describe_chip(pool: WorkerPool) -> str:
    """Return the name of a pool's GPU. Raises MissingPrerequisite without such a GPU."""
    return _chip(_existing_gpu(pool, pool.device))


def _existing_gpu(pool: WorkerPool, device: str) -> dict[str, Any]:
    found = describe_gpu(pool)
    if "error" in found:
        name, count = visible_name(device), gpu_count()
        if count is not None and name.isdigit() and int(name) >= count:
            found["error"] = f"this machine has {count} GPU{'s' * (count != 1)}, from cuda:0 on"
        raise MissingPrerequisite(
            f"no target {device}: {found['error']}", "use --target cpu, or see what `nvidia-smi` says"
        )
    return found


def _chip(found: Mapping[str, Any]) -> str:
    return f"{found['chip']} ({found['capability']})"


def describe_gpu(pool: WorkerPool) -> dict[str, Any]:
    """Answer of `ceilings.serve` for it: "chip", "capability", "memory_bytes", …, or the "error"."""
    return _ask(pool, {"do": "describe", "device": pool.worker_device})


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
