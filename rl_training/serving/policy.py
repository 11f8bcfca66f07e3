"""What can be served as a coder: a folder with a causal language model, its tokenizer and its chat template.

Looked at before a server is started: its own answers are tracebacks, or come with the first request.
"""

import json
from pathlib import Path
from typing import Any

from kernelbench.errors import MissingPrerequisite, UsageError
from kernelbench.records import Record


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
    if not (folder / "config.json").exists():
        if (folder / "adapter_config.json").exists():
            raise UsageError(
                f"{folder} holds an adapter without its model",
                "merge them with peft's merge_and_unload, and save that with save_pretrained",
            )
        raise UsageError(
            f"{folder} is no model: it has no config.json", "save one there with save_pretrained"
        )
    tokenizer = _tokenizer(folder)
    if not tokenizer.chat_template:
        raise UsageError(
            f"the tokenizer in {folder} has no chat template",
            "save it with the one that the policy was trained with, as chat_template.jinja",
        )
    asked, begun = (_rendered(tokenizer, folder, begin) for begin in (False, True))
    if asked == begun:
        raise UsageError(
            f"the chat template in {folder} has no generation prompt, so nothing tells the policy to answer",
            "have it write the beginning of an answer `if add_generation_prompt`",
        )
    return Policy(folder=folder.resolve(), samples=_samples(folder))


def _tokenizer(folder: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingPrerequisite("transformers is not installed", "pip install 'kernelwright[rl]'") from None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"{folder} has no tokenizer that can be read ({said})", "save it there with save_pretrained"
        ) from None


def _rendered(tokenizer: Any, folder: Path, begin: bool) -> str:
    """A prompt such as the coder's."""
    messages = [{"role": "system", "content": "You write kernels."}, {"role": "user", "content": "Begin."}]
    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=begin)
    except Exception as error:  # noqa: BLE001 - a template raises what it likes
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"the chat template in {folder} does not take a system message and a user's ({said})",
            "use one that does, the one that the policy was trained with",
        ) from None
    return text


def _samples(folder: Path) -> bool:
    try:
        found = json.loads((folder / "generation_config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("do_sample") is True
