"""Models of transformers by their names, as KernelBench's level 4 has them, without what a network gives.

    config = AutoConfig.from_pretrained("gpt2")
    self.model = AutoModelForCausalLM.from_pretrained("gpt2", config=config)

A task is complete by itself and is run without a network. So its config is written into it, from the folder
that KERNELBENCH_CONFIGS names (DIR/gpt2/config.json), from Hugging Face's cache, or as the default of its
class where that is the model's; its weights are random.
"""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources.assignments import module_scope, parse
from kernelwright.kernelbench.sources.formats.documents import read_json
from kernelwright.kernelbench.sources.formats.task_text import with_notes

VARIABLE = "KERNELBENCH_CONFIGS"
_CONFIG = re.compile(r"\bAutoConfig\.from_pretrained\((?P<name>\w+|\"[^\"]*\"|'[^']*')\)")
_MODEL = re.compile(r"\b(?P<kind>AutoModel\w*)\.from_pretrained\([^(),]+, *config=(?P<config>[\w.]+)\)")
# Types whose default config is that of a model, as the documentation of transformers says.
_DEFAULTS = {
    "gpt2": "gpt2",
    "openai-community/gpt2": "gpt2",
    "facebook/bart-large": "bart",
    "google/bigbird-roberta-base": "big_bird",
    "google/electra-small-discriminator": "electra",
}
_OF_FILES = (
    "_name_or_path",
    "architectures",
    "model_type",
    "transformers_version",
)  # say nothing of the model


def with_random_weights(source: str, where: str) -> str:
    """Return a task's text with its configs written out and its weights random; others as they are.

    Raises UsageError where a config is nowhere to be found.
    """
    if "AutoConfig.from_pretrained(" not in source:
        return source
    names = dict.fromkeys(_name(found["name"], source, where) for found in _CONFIG.finditer(source))
    if not names or any(Path(name).is_dir() for name in names):
        return source
    notes = ["the weights are random, of the config alone, and dropout is off as in a model that was loaded"]

    def config(found: re.Match[str]) -> str:
        text, note = _config(_name(found["name"], source, where), where)
        notes.extend([note] if note not in notes else [])
        return text

    def model(found: re.Match[str]) -> str:
        return f"{found['kind']}.from_config({found['config']}).eval()"

    text = _MODEL.sub(model, _CONFIG.sub(config, source))
    if ".from_pretrained(" in text:
        raise UsageError(
            f"{where} loads something by from_pretrained, and there is no network where it is run",
            "write AutoModel….from_pretrained(name, config=config), whose weights become random",
        )
    return with_notes(text, notes)


def _name(text: str, source: str, where: str) -> str:
    """Return the name of a model, given as a string or by a constant."""
    found = module_scope(parse(source, where)).assignments.get(text)
    word = ast.unparse(found[-1].value) if found else text
    return word.strip("\"'")


def _config(name: str, where: str) -> tuple[str, str]:
    """Return the code of a config, and where it is from."""
    file = next((path for path in _places(name) if path.is_file()), None)
    if file is None:
        if name in _DEFAULTS:
            default = f'AutoConfig.for_model("{_DEFAULTS[name]}")'
            return default, f"the config of {name} is the default of its class in transformers"
        raise UsageError(
            f"{where} needs the config of {name}",
            f"put it into DIR/{name}/config.json, and set {VARIABLE}=DIR",
        )
    held = read_json(file)
    if not isinstance(held, dict) or not isinstance(held.get("model_type"), str):
        raise UsageError(f"{file} names no model_type", "give the config.json of a model of transformers")
    values = {key: value for key, value in held.items() if key not in _OF_FILES}
    return (
        f"AutoConfig.for_model({held['model_type']!r}, **{values!r})",
        f"the config of {name} is written here",
    )


def _places(name: str) -> Iterator[Path]:
    """Yield the files that may hold the config of a model."""
    if folder := os.environ.get(VARIABLE):
        yield Path(folder).expanduser() / name / "config.json"
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    yield from sorted(snapshots.glob("*/config.json"))
