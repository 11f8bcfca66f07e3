"""The trained model with its tokenizer: a folder or a name on the Hugging Face Hub.

Problems that would show late, or never, are found when it is loaded: a folder that lacks something, a
tokenizer that cannot render a conversation, or not so that a reply continues its prompt.

Adapters are saved without the weights they were trained on, and name them. So these must be on the disk
unchanged: a model that other adapters were merged into is saved beside them (`keep_base`).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.records import Record

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER = "adapter_config.json"
BASE = "base"  # in the run's folder: what new adapters stand on, where that is nowhere else
_PARTS = {
    "no config.json": ("config.json", ADAPTER),
    "no weights": ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin"),
    "no tokenizer": ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"),
}
_PROMPT = [{"role": "system", "content": "You write kernels."}, {"role": "user", "content": "Write one."}]
_REPLY = {"role": "assistant", "content": "Here it is."}

Loaded = TypeVar("Loaded")


class LoraSettings(Record):
    """Low-rank adapters (arXiv:2106.09685) at all linear layers but the last."""

    rank: int = Field(gt=0)
    alpha: float | None = Field(default=None, gt=0)  # None: twice the rank
    dropout: float = Field(default=0.0, ge=0, lt=1)


@dataclass(frozen=True)
class Policy:
    model: "PreTrainedModel"  # a PeftModel with LoRA
    tokenizer: "PreTrainedTokenizerBase"


def load_policy(name: str, lora: LoraSettings | None = None, dtype: str = "float32") -> Policy:
    """Load a policy. `name`: a folder of `save_pretrained`, or a name on the Hub; `dtype` as torch names it.

    A folder of adapters is loaded with its base, merged into it. New adapters are initialized from torch's
    generator: seed it before; call `keep_base` before they are saved. Raises UsageError, MissingPrerequisite.
    """
    require(lora is not None)
    # The tokenizer first: what is wrong with it shows before weights are read.
    tokenizer = load_tokenizer(name)
    model = _read(name, lambda: _model(name, dtype))
    rows = int(model.get_input_embeddings().num_embeddings)  # of weights that ZeRO-3 has emptied, too
    if len(tokenizer) > rows:
        raise UsageError(
            f"{name}: its tokenizer has {len(tokenizer)} tokens, the model {rows}",
            "give the tokenizer that belongs to the model",
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    if model.generation_config is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id
    return Policy(_adapted(model, lora) if lora is not None else model, tokenizer)


def keep_base(model: Any, run: Path) -> None:
    """Make adapters of `model`, if any, name weights that are on the disk.

    These are the ones they were loaded with, or RUN/base, which is written if it is missing. Raises
    StorageError.
    """
    from kernelwright.rl_training.trainers.checkpoints import written_whole

    if not hasattr(model, "peft_config") or not hasattr(model, "get_base_model"):
        return
    if all(config.base_model_name_or_path for config in model.peft_config.values()):
        return
    folder, plain = run / BASE, model.get_base_model()
    if not folder.exists():
        weights = {
            name.replace(".base_layer.", "."): held
            for name, held in plain.state_dict().items()
            if ".lora_" not in name
        }
        with written_whole(folder) as staged:
            plain.save_pretrained(staged, state_dict=weights)
    for config in model.peft_config.values():
        config.base_model_name_or_path = str(folder.resolve())


def base_of(adapters: Path) -> str:
    """Return the folder, or the name on the Hub, of the model that a folder of adapters belongs to.

    Raises UsageError if it is not named, or no longer there.
    """
    try:
        base = json.loads((adapters / ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    fix = f"give its path or its name on the Hub as base_model_name_or_path in {adapters / ADAPTER}"
    if not isinstance(base, str) or not base:
        raise UsageError(f"{adapters} holds adapters that do not name their base model", fix)
    if Path(base).is_absolute() and not Path(base).is_dir():
        raise UsageError(f"{adapters} holds adapters of {base}, which is no longer there", fix)
    return base


def load_tokenizer(name: str) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a complete model's folder, or of a name on the Hub.

    Raises UsageError, MissingPrerequisite.
    """
    folder = Path(name)
    if folder.is_dir():
        _complete(folder)
    elif folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or folder.exists():
        raise UsageError(f"the folder {name} does not exist", "give a model's folder, or a name on the Hub")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingPrerequisite(
            "a policy needs the package transformers", "pip install 'kernelwright[rl]'"
        ) from None
    tokenizer = _read(name, lambda: AutoTokenizer.from_pretrained(name))
    check_tokenizer(tokenizer, name)
    return tokenizer


def require(adapters: bool = False) -> None:
    """Raise MissingPrerequisite if a package that trainers need is not installed."""
    for package in ("transformers", "trl", *(("peft",) if adapters else ())):
        try:
            __import__(package)
        except ImportError:
            raise MissingPrerequisite(
                f"training needs the package {package}", "pip install 'kernelwright[rl]'"
            ) from None


def quiet() -> None:
    """Disable progress bars and transformers' deprecation warnings."""
    import warnings

    import datasets
    from transformers.utils import logging

    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def check_tokenizer(tokenizer: "PreTrainedTokenizerBase", name: str) -> None:
    """Raise UsageError if the tokenizer cannot render training data.

    A tokenizer without a pad token pads with its end token, as TRL does.
    """
    from jinja2 import TemplateError

    another = "give a model tuned for chat (often named -Instruct), or add a chat template to its tokenizer"
    if not tokenizer.chat_template:
        raise UsageError(f"{name}: its tokenizer has no chat template", another)
    try:
        without, prompt, whole = (
            str(tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=asked))
            for said, asked in ((_PROMPT, False), (_PROMPT, True), ([*_PROMPT, _REPLY], False))
        )
    except (TemplateError, TypeError, ValueError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{name}: its chat template cannot render a prompt ({why})", another) from None
    if prompt == without:
        raise UsageError(
            f"{name}: its chat template has no generation prompt, so replies would not begin as an "
            "assistant's",
            "add one to its chat template: {% if add_generation_prompt %}…{% endif %}",
        )
    if not whole.startswith(prompt):
        raise UsageError(
            f"{name}: its chat template does not render a reply after its generation prompt, so "
            "training would see other tokens than generation",
            "fix its chat template: a conversation with the reply must begin with the prompt as rendered",
        )
    if tokenizer.eos_token is None:
        raise UsageError(
            f"{name}: its tokenizer has no end token, so no reply would end",
            "set eos_token in its tokenizer_config.json",
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def _complete(folder: Path) -> None:
    for lacking, patterns in _PARTS.items():
        if not any(found for pattern in patterns for found in folder.glob(pattern)):
            raise UsageError(
                f"{folder} holds no model: {lacking}", "give a folder as save_pretrained(...) writes it"
            )


def _read(name: str, load: Callable[[], Loaded]) -> Loaded:
    """Return the result of `load`; its errors are reported in one line."""
    from safetensors import SafetensorError

    try:
        return load()
    except (OSError, ValueError, RuntimeError, KeyError, EOFError, SafetensorError) as error:
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if Path(name).is_dir():
            raise UsageError(
                f"{name} cannot be loaded ({why})", "give a folder as save_pretrained(...) writes it"
            ) from error
        raise UsageError(
            f"{name} is neither a folder nor available on the Hugging Face Hub ({why})",
            "give a model's folder, or check the name and the connection",
        ) from error


def _model(name: str, dtype: str) -> "PreTrainedModel":
    folder = Path(name)
    if folder.is_dir():
        name = str(folder.resolve())  # adapters will name it, wherever they are loaded
    if (folder / ADAPTER).exists():
        return _merged(folder, dtype)
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, output_loading_info=True)
    if missing := sorted(loading["missing_keys"]):
        # transformers would have them begin with random numbers.
        raise ValueError(f"{len(missing)} weights are missing, such as {missing[0]}")
    return model


def _merged(adapters: Path, dtype: str) -> "PreTrainedModel":
    """Return a base model with adapters merged in. It has no name, since it is not on the disk."""
    require(adapters=True)
    from peft import PeftModel
    from transformers import AutoTokenizer

    model = _model(base_of(adapters), dtype)
    tokens = len(AutoTokenizer.from_pretrained(str(adapters)))
    if tokens > model.get_input_embeddings().weight.shape[0]:  # some were added with the adapters
        model.resize_token_embeddings(tokens)
    merged: PreTrainedModel = PeftModel.from_pretrained(model, str(adapters)).merge_and_unload()
    merged.name_or_path = ""
    merged.requires_grad_(True)  # peft froze it
    return merged


def _adapted(model: "PreTrainedModel", lora: LoraSettings) -> "PreTrainedModel":
    from peft import LoraConfig, get_peft_model

    alpha = lora.alpha if lora.alpha is not None else 2 * lora.rank
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)
