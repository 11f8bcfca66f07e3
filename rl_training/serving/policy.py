"""A servable policy: a folder with a causal language model, its tokenizer and its chat template.

Checked before a server is started: the server's own errors are tracebacks, or come with the first request.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.trainers.policy import ADAPTER, base_of, load_policy, load_tokenizer


class ServedPolicy(Record):
    """A policy to serve. `samples`: it samples; otherwise each token is the likeliest, at any temperature.

    For a folder of adapters, `base` is the model that they belong to, and `rank` is theirs.
    """

    folder: Path
    samples: bool
    base: str | None = None
    rank: int = 0

    @property
    def name(self) -> str:
        """Name under which servers know the policy."""
        return str(self.folder)


def policy_in(folder: Path) -> ServedPolicy:
    """Check and return the policy in a folder.

    Raises UsageError if it could not answer a coder, MissingPrerequisite without transformers.
    """
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist", "give the folder of a trained model")
    base = base_of(folder) if (folder / ADAPTER).exists() else None
    load_tokenizer(str(folder))
    return ServedPolicy(
        folder=folder.resolve(),
        samples=_samples(folder if base is None else Path(base)),
        base=base,
        rank=json.loads((folder / ADAPTER).read_text()).get("r", 0) if base is not None else 0,
    )


@contextmanager
def whole(policy: ServedPolicy) -> Iterator[ServedPolicy]:
    """Merge adapters with their model into a temporary folder, for a server that takes no adapters.

    In float32: an adapter moves weights by less than bf16 can represent. Raises StorageError, UsageError.
    """
    if policy.base is None:
        yield policy
        return
    with tempfile.TemporaryDirectory(prefix="kernelwright-") as folder:
        place = Path(folder) / policy.folder.name
        merged = load_policy(str(policy.folder))
        try:
            merged.model.save_pretrained(place)
            merged.tokenizer.save_pretrained(place)
        except OSError as error:
            raise StorageError(
                f"{place} cannot be written: {error.strerror or error}", "set TMPDIR to a larger disk"
            ) from error
        del merged
        yield ServedPolicy(folder=place, samples=_samples(place))


def _samples(folder: Path) -> bool:
    try:
        found = json.loads((folder / "generation_config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("do_sample") is True
