"""Card of a trained policy: what was trained on what, from the training's manifest."""

from pathlib import Path

from kernelwright.results.store.training import Manifest, read_manifest
from kernelwright.rl_training import new_folder
from kernelwright.rl_training.templating import template

_HIDDEN = ("model", "reward", "lora")  # of the settings, which have lines of their own


def write_card(training: Path, policy: Path) -> None:
    """Write POLICY/README.md, a model card for the Hugging Face Hub. Raises StorageError."""
    new_folder.write(policy / "README.md", card(read_manifest(training), training))


def card(manifest: Manifest, training: Path) -> str:
    """Return the card of a training."""
    config = manifest.config
    base = str(config.get("model", ""))
    held_out = (training / "held_out.jsonl").is_file()
    return template("policy_card.md").render(
        manifest=manifest,
        base=base,
        on_hub=bool(base) and not Path(base).is_dir() and base.count("/") == 1,
        settings={name: value for name, value in config.items() if name not in _HIDDEN},
        reward=config.get("reward"),
        lora=config.get("lora"),
        held_out=held_out,
    )
