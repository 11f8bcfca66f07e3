"""What can be served as a coder: a folder with a causal language model, its tokenizer and its chat template.

Looked at before a server is started: its own answers are tracebacks, or come with the first request.
"""

import json
from pathlib import Path

from kernelbench.errors import UsageError
from kernelbench.records import Record
from rl_training.trainers.policy import ADAPTER, load_tokenizer


class Policy(Record):
    """`samples`: whether answers differ; otherwise each token is the likeliest, at any temperature."""

    folder: Path
    samples: bool

    @property
    def name(self) -> str:
        """What servers are told, and asked for."""
        return str(self.folder)


def policy_in(folder: Path) -> Policy:
    """Raises UsageError where it could not answer a coder, MissingPrerequisite without transformers."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", "give the folder of a trained model")
    if not (folder / "config.json").exists() and (folder / ADAPTER).exists():
        raise UsageError(
            f"{folder} holds an adapter without its model",
            "merge them with peft's merge_and_unload, and save that with save_pretrained",
        )
    load_tokenizer(str(folder))
    return Policy(folder=folder.resolve(), samples=_samples(folder))


def _samples(folder: Path) -> bool:
    try:
        found = json.loads((folder / "generation_config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("do_sample") is True
