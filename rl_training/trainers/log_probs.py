"""Tokens of prompts and replies, and their likelihood under a policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Encoded:
    """A prompt and a reply as one sequence."""

    tokens: tuple[int, ...]
    prompt: int  # tokens of it


def encode(tokenizer: Any, prompt: Sequence[dict[str, str]], reply: str) -> Encoded:
    """Encode a conversation as the chat template renders it, up to the token that ends the reply.

    The prompt is tokenized separately, as it is for generation, so that the rest begins where a reply would.
    The template is one that `check_tokenizer` accepts.
    """
    said = [*prompt, {"role": "assistant", "content": reply}]
    before = str(tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True))
    whole = str(tokenizer.apply_chat_template(said, tokenize=False))
    head = tokenizer(before, add_special_tokens=False)["input_ids"]
    tail = tokenizer(whole[len(before) :], add_special_tokens=False)["input_ids"]
    if tokenizer.eos_token_id in tail:  # what templates put after it is never generated
        tail = tail[: len(tail) - tail[::-1].index(tokenizer.eos_token_id)]
    return Encoded((*head, *tail), len(head))


def padded(sequences: Sequence[Encoded], pad: int) -> dict[str, torch.Tensor]:
    """Pad on the right; (N, L) each: `input_ids`, `attention_mask`, and `reply`, 1.0 at tokens of replies."""
    length = max(len(one.tokens) for one in sequences)
    tokens = torch.full((len(sequences), length), pad)
    attention = torch.zeros(len(sequences), length, dtype=torch.long)
    reply = torch.zeros(len(sequences), length)
    for row, one in enumerate(sequences):
        tokens[row, : len(one.tokens)] = torch.tensor(one.tokens)
        attention[row, : len(one.tokens)] = 1
        reply[row, one.prompt : len(one.tokens)] = 1.0
    return {"input_ids": tokens, "attention_mask": attention, "reply": reply}


def token_log_probs(logits: torch.Tensor, tokens: torch.Tensor, reply: torch.Tensor) -> torch.Tensor:
    """Return log π(y_t | x, y_<t) where `reply` is 1, 0 elsewhere.

    logits (N, L, V), tokens (N, L) int64, reply (N, L) -> (N, L - 1) float32, from the second token on.
    """
    picked = torch.gather(logits[:, :-1].float(), -1, tokens[:, 1:, None]).squeeze(-1)
    return (picked - torch.logsumexp(logits[:, :-1].float(), -1)) * reply[:, 1:]
