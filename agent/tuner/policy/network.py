"""The network of a policy: a small Llama whose logits the grammar of schedules masks.

A prompt has the features of a task and asks for its knobs, one by one; the reply has a token for each, and
ends. Which tokens may come next follows from the ids alone, so the mask is part of the model: what samples
from it, and what computes the probabilities of its replies for an update, see the same distribution, in which
a line that is none has the probability 0.

    <|user|> tanh _softmax rows:8 columns:10 … fuse?2 … k0: block?9 … <|eos|>
    <|assistant|> fuse=all … k0: block=64 … <|eos|>
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, KERNEL_KNOBS
from kernelwright.agent.tuner.policy.features import ASSISTANT, END, PAD
from kernelwright.agent.tuner.policy.folder import MODEL_TYPE
from kernelwright.agent.tuner.policy.space import KERNELS, Slot

_USER = "<|user|>"
_FORBIDDEN = -1e4  # a logit whose probability is 0 in float32, and whose entropy is no NaN
_CHAT = (
    "{%- for message in messages if message['role'] != 'system' -%}"
    "<|{{ message['role'] }}|> {{ message['content'] }} <|eos|> "
    "{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|> {%- endif -%}"
)


class SchedulePolicyConfig(LlamaConfig):
    model_type = MODEL_TYPE


class SchedulePolicy(LlamaForCausalLM):
    """Llama over lines of schedules. `may_follow`: [V, V] bool, which tokens answer what a prompt asks."""

    config_class = SchedulePolicyConfig

    def __init__(self, config: SchedulePolicyConfig) -> None:
        super().__init__(config)
        size = config.vocab_size
        self.register_buffer("may_follow", torch.zeros(size, size, dtype=torch.bool))

    def forward(self, input_ids: torch.Tensor | None = None, **given: Any) -> Any:
        assert input_ids is not None and given.get("past_key_values") is None, "the mask is of whole lines"
        output = super().forward(input_ids=input_ids, **{**given, "use_cache": False})
        allowed = self.allowed(input_ids)[:, -output.logits.shape[1] :]
        output.logits = output.logits.masked_fill(~allowed, _FORBIDDEN)
        return output

    def generate(self, *args: Any, generation_config: Any = None, **given: Any) -> Any:
        if generation_config is None:
            return super().generate(*args, **{**given, "use_cache": False})
        whole = copy.copy(generation_config)
        whole.use_cache = False
        return super().generate(*args, generation_config=whole, **given)

    def allowed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [B, T, V] bool: which tokens may follow each place; all of them within a prompt."""
        end, assistant = self.config.eos_token_id, self.config.assistant_token_id
        answering = (ids == assistant).cumsum(1) > 0
        asks = self.may_follow.any(1)[ids] & (ids != end) & ~answering
        number = asks.cumsum(1) - 1  # of what is asked
        asked = torch.full((len(ids), int(asks.sum(1).max()) + 1), end, device=ids.device)
        row = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        asked[row[asks], number[asks]] = ids[asks]
        place = (answering.cumsum(1) - 1).clamp(0, asked.shape[1] - 1)
        found: torch.Tensor = self.may_follow[asked.gather(1, place)] | ~answering[:, :, None]
        return found


def register() -> None:
    """Let `AutoModelForCausalLM` load a policy of schedules."""
    AutoConfig.register(SchedulePolicyConfig.model_type, SchedulePolicyConfig, exist_ok=True)
    AutoModelForCausalLM.register(SchedulePolicyConfig, SchedulePolicy, exist_ok=True)


def tokens() -> list[str]:
    """Return the tokens of all lines, and of what asks for them."""
    return list(dict.fromkeys(token for slot in _slots() for token in (slot.asked, *slot.tokens)))


def tokenizer_of(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of lines, and of prompts with these words of features."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    special = (PAD, END, _USER, ASSISTANT)
    names = dict.fromkeys((*special, *words, *tokens()))
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, unk_token=PAD, chat_template=_CHAT,
        padding_side="left", clean_up_tokenization_spaces=False,
    )  # fmt: skip


def begin(words: Sequence[str], folder: Path, layers: int, width: int, seed: int) -> None:
    """Write a new policy that reads these words of features: it draws each token about equally often."""
    tokenizer = tokenizer_of(words)
    torch.manual_seed(seed)
    model = SchedulePolicy(config_of(tokenizer, layers, width))
    ids = tokenizer.get_vocab()
    for slot in _slots():
        for token in slot.tokens:
            model.may_follow[ids[slot.asked], ids[token]] = True
    model.may_follow[ids[END], ids[END]] = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def config_of(tokenizer: PreTrainedTokenizerFast, layers: int, width: int) -> SchedulePolicyConfig:
    return SchedulePolicyConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 16),
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        assistant_token_id=tokenizer.convert_tokens_to_ids(ASSISTANT),
    )


def _slots() -> list[Slot]:
    """Return every slot that any task may have, with each number of values."""
    kernels = [Slot(f"k{number}") for number in range(KERNELS)]
    of_graphs = [Slot("", knob, n) for knob, values in GRAPH_KNOBS.items() for n in range(2, len(values) + 1)]
    of_kernels = [
        Slot("k0", knob, n) for knob, values in KERNEL_KNOBS.items() for n in range(2, len(values) + 1)
    ]
    return [*kernels, *of_graphs, *of_kernels]
