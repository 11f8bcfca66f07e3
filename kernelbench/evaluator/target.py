"""The CPU as a target: what it is, and what it can do at best."""

import hashlib
import json
import os

from kernelbench.errors import InfrastructureError
from kernelbench.evaluator.process import WorkerDied, WorkerPool, WorkerTimeout
from kernelbench.machine import fingerprint
from kernelbench.records import Ceilings, Fingerprint, Language, Target


def detect_target(pool: WorkerPool, again: bool = False) -> Target:
    """The CPU as a target. Its ceilings are measured once and kept beside the build cache.

    With `again` they are measured anew, and the higher of old and new is kept: another process may
    have slowed a measurement, nothing can have sped it up.
    """
    mark = fingerprint(pool.threads)
    key = hashlib.sha256(mark.model_dump_json().encode()).hexdigest()[:16]
    file = pool.cache / "ceilings" / f"{key}.json"
    known = Ceilings.model_validate_json(file.read_text()) if file.exists() else None
    if known is not None and not again:
        ceilings = known
    else:
        ceilings = _measure(pool, mark)
        if known is not None:
            best = {name: max(value, getattr(ceilings, name)) for name, value in known}
            ceilings = Ceilings(**best)
        file.parent.mkdir(exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(ceilings.model_dump_json())
        temporary.rename(file)
    languages: tuple[Language, ...] = ("torch",) if mark.compiler == "none" else ("cpp", "torch")
    return Target(device="cpu", languages=languages, ceilings=ceilings, fingerprint=mark)


def _measure(pool: WorkerPool, mark: Fingerprint) -> Ceilings:
    message = {"do": "measure", "last_level_cache_bytes": mark.last_level_cache_bytes}
    with pool.start("baseline", "kernelbench.evaluator.ceilings:serve") as worker:
        try:
            return Ceilings.model_validate(json.loads(worker.request(message, 120)))
        except (WorkerDied, WorkerTimeout) as error:
            raise InfrastructureError(
                f"the machine could not be measured: {error}", "free some memory"
            ) from None
