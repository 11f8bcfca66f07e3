"""A device as a target: what it is, and what it can do at best."""

import time
from typing import Any

from kernelbench import kept
from kernelbench.errors import InfrastructureError, MissingPrerequisite
from kernelbench.evaluator.process import WorkerDied, WorkerTimeout
from kernelbench.evaluator.workers import WorkerPool
from kernelbench.machine import fingerprint
from kernelbench.records import Ceilings, Fingerprint, Language, Target

_MEASURED, _PAUSE_S = 3, 0.5  # times, the first time


def detect_target(pool: WorkerPool, device: str = "cpu", again: bool = False) -> Target:
    """`device`, "cpu" or "cuda:0", as a target.

    Its ceilings are measured once and kept beside the build cache.
    With `again` they are measured anew, and the higher of old and new is kept: another process may
    have slowed a measurement, nothing can have sped it up. Raises MissingPrerequisite without such a GPU,
    StorageError where what was kept is damaged.
    """
    mark = fingerprint(pool.threads) if device == "cpu" else _gpu(pool, device)
    file = kept.kept_file(pool.cache, "ceilings", mark)
    known = kept.read(file, Ceilings)
    if known is not None and not again:
        ceilings = known
    else:
        ceilings = _measure(pool, device, mark, 1 if known is not None else _MEASURED)
        if known is not None:
            best = {name: max(value, getattr(ceilings, name)) for name, value in known}
            ceilings = Ceilings(**best)
        kept.write(file, ceilings)
    return Target(device=device, languages=_languages(device, mark), ceilings=ceilings, fingerprint=mark)


def _languages(device: str, mark: Fingerprint) -> tuple[Language, ...]:
    if device != "cpu":
        return ("cuda", "triton", "torch")
    return ("torch",) if mark.compiler == "none" else ("cpp", "torch")


def _gpu(pool: WorkerPool, device: str) -> Fingerprint:
    """What a GPU is, and the host that launches its kernels."""
    found = describe_gpu(pool, device)
    if "error" in found:
        raise MissingPrerequisite(
            f"no target {device}: {found['error']}", "use --target cpu, or see what `nvidia-smi` says"
        )
    host = fingerprint(pool.threads)
    return host.model_copy(
        update={
            "chip": f"{found['chip']} ({found['capability']})",
            "memory_bytes": found["memory_bytes"],
            "last_level_cache_bytes": found["cache_bytes"],
            "system": f"{host.system}, {host.chip}",
            "compiler": f"CUDA {found['cuda']}",
        }
    )


def describe_gpu(pool: WorkerPool, device: str) -> dict[str, Any]:
    """What `ceilings.serve` says of it: "chip", "capability", "memory_bytes", …, or the "error"."""
    return _ask(pool, {"do": "describe", "device": device})


def _measure(pool: WorkerPool, device: str, mark: Fingerprint, times: int) -> Ceilings:
    """The best of so many measurements: what else runs on the machine often does so for a second or less."""
    message = {"do": "measure", "device": device, "last_level_cache_bytes": mark.last_level_cache_bytes}
    found = []
    for number in range(times):
        time.sleep(_PAUSE_S if number else 0)
        found.append(Ceilings.model_validate(_ask(pool, message)))
    best = {name: max(getattr(each, name) for each in found) for name in Ceilings.model_fields}
    return Ceilings(**best)


def _ask(pool: WorkerPool, message: dict[str, object]) -> dict[str, Any]:
    with pool.start("baseline", "kernelbench.evaluator.ceilings:serve") as worker:
        try:
            return worker.ask(message, 120)
        except (WorkerDied, WorkerTimeout) as error:
            raise InfrastructureError(
                f"the machine could not be measured: {error}", "free some memory"
            ) from None
