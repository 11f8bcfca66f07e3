"""The network of a policy: a small Llama whose weights hold the grammar of schedules.

A prompt has the features of a task and asks for its knobs, one by one; the reply has a token for each, and
ends. Which tokens may come next follows from the ids alone, so the grammar is part of the model: what samples
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
from transformers.models.llama.modeling_llama import LlamaModel

from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, KERNEL_KNOBS
from kernelwright.agent.tuner.policy.features import ASSISTANT, END, PAD
from kernelwright.agent.tuner.policy.folder import MODEL_TYPE
from kernelwright.agent.tuner.policy.space import KERNELS, Slot

_USER = "<|user|>"
_FORBIDDEN = -1e4  # a logit whose probability is 0 in float32, while its entropy is a number
_CHAT = (
    "{%- for message in messages if message['role'] != 'system' -%}"
    "<|{{ message['role'] }}|> {{ message['content'] }} <|eos|> "
    "{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|> {%- endif -%}"
)


class SchedulePolicyConfig(LlamaConfig):
    """Config of a policy. `asks`: for each token, the number of what it asks for; -1 for nothing."""

    model_type = MODEL_TYPE

    def __init__(self, asks: Sequence[int] = (), assistant_token_id: int = 0, **given: Any) -> None:
        super().__init__(**given)
        self.asks = list(asks)
        self.assistant_token_id = assistant_token_id

    @property
    def asked(self) -> int:
        """Number of different things that a prompt can ask for, the end among them."""
        return max(self.asks, default=-1) + 1


class GrammarBackbone(LlamaModel):
    """Llama whose hidden states say, besides, what is asked for at each place: [B, T, width + asked]."""

    def forward(self, input_ids: torch.Tensor | None = None, **given: Any) -> Any:
        assert input_ids is not None and given.get("past_key_values") is None, "the grammar is of whole lines"
        output = super().forward(input_ids=input_ids, **{**given, "use_cache": False})
        hidden = output.last_hidden_state
        output.last_hidden_state = torch.cat([hidden, self.asked(input_ids).to(hidden.dtype)], -1)
        return output

    def asked(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [B, T, asked] of 0 and 1: what the next token has to answer; all 0 within a prompt."""
        kinds = torch.tensor(self.config.asks, device=ids.device)[ids]
        answering = (ids == self.config.assistant_token_id).cumsum(1) > 0
        asks = (kinds >= 0) & (ids != self.config.eos_token_id) & ~answering
        number = asks.cumsum(1) - 1  # of what is asked, in its prompt
        end = self.config.asks[self.config.eos_token_id]
        lines = torch.full((len(ids), int(asks.sum(1).max()) + 1), end, device=ids.device)
        row = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        lines[row[asks], number[asks]] = kinds[asks]
        place = (answering.cumsum(1) - 1).clamp(0, lines.shape[1] - 1)
        found = torch.nn.functional.one_hot(lines.gather(1, place), self.config.asked)
        return found * answering[:, :, None]


class SchedulePolicy(LlamaForCausalLM):
    """Llama over lines of schedules.

    The last columns of its head's weights, one for each thing that can be asked for, hold 0 for the tokens
    that answer it and a large negative number for all others, which no gradient of a line ever reaches. So it
    does not matter how logits are computed: TRL multiplies hidden states by the head's weights by itself.
    """

    config_class = SchedulePolicyConfig

    def __init__(self, config: SchedulePolicyConfig) -> None:
        super().__init__(config)
        self.model = GrammarBackbone(config)
        width = config.hidden_size + config.asked
        self.lm_head = torch.nn.Linear(width, config.vocab_size, bias=False)
        self.post_init()

    def generate(self, *args: Any, generation_config: Any = None, **given: Any) -> Any:
        if generation_config is None:
            return super().generate(*args, **{**given, "use_cache": False})
        whole = copy.copy(generation_config)
        whole.use_cache = False
        return super().generate(*args, generation_config=whole, **given)


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
    with torch.no_grad():
        model.lm_head.weight[:, width:] = _FORBIDDEN
        for asked, answers in _answers(tokenizer).items():
            for token in answers:
                model.lm_head.weight[token, width + model.config.asks[asked]] = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _answers(tokenizer: PreTrainedTokenizerFast) -> dict[int, list[int]]:
    """Return the tokens that answer each token that asks for something; the end answers itself."""
    ids = tokenizer.get_vocab()
    found = {ids[END]: [ids[END]]}
    return found | {ids[slot.asked]: [ids[token] for token in slot.tokens] for slot in _slots()}


def config_of(tokenizer: PreTrainedTokenizerFast, layers: int, width: int) -> SchedulePolicyConfig:
    numbers = {asked: number for number, asked in enumerate(_answers(tokenizer))}
    return SchedulePolicyConfig(
        asks=[numbers.get(token, -1) for token in range(len(tokenizer))],
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
