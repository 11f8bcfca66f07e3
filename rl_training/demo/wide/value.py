"""A value model: the policy's network, which predicts the reward of a line instead of writing one.

It is fitted to as many evaluations of random schedules as a training makes, and ranks drawn lines, of which
the first are tried. A search by it is what a policy has to beat.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaModel

from kernelwright.agent.tuner.policy.network import config_of

_BATCH = 64
_RATE = 3e-3


@dataclass(frozen=True)
class ScoredLine:
    """A line for a task, by its prompt, with the reward that it earned."""

    prompt: str
    line: str
    reward: float


class ValueModel(nn.Module):
    """Predicts rewards of lines. Its scale is that of the examples."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, layers: int, width: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.body = LlamaModel(config_of(tokenizer, layers, width))
        self.head = nn.Linear(width, 1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [B] predictions for [B, T] ids, padded on the left."""
        hidden = self.body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        found: torch.Tensor = self.head(hidden[:, -1])[:, 0]
        return found

    def predictions(self, prompt: str, lines: Sequence[str]) -> list[float]:
        with torch.no_grad():
            return self(*self.encoded([(prompt, line) for line in lines])).tolist()

    def encoded(self, texts: Sequence[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.tokenizer(
            [f"{prompt} {line}" for prompt, line in texts], padding=True, return_tensors="pt"
        )
        return found["input_ids"], found["attention_mask"]


def fitted(
    examples: Sequence[ScoredLine],
    tokenizer: PreTrainedTokenizerFast,
    layers: int,
    width: int,
    passes: int,
    seed: int,
) -> ValueModel:
    """Fit a value model by least squares; rewards are normalized, since only their order is used."""
    torch.manual_seed(seed)
    model = ValueModel(tokenizer, layers, width)
    rewards = torch.tensor([each.reward for each in examples])
    rewards = (rewards - rewards.mean()) / rewards.std(correction=0).clamp_min(1e-6)
    optimizer = torch.optim.AdamW(model.parameters(), _RATE)
    ids, mask = model.encoded([(each.prompt, each.line) for each in examples])
    rng = random.Random(seed)
    updates = passes * -(-len(examples) // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(passes):
        order = rng.sample(range(len(examples)), len(examples))
        for first in range(0, len(order), _BATCH):
            rows = torch.tensor(order[first : first + _BATCH])
            loss = (model(ids[rows], mask[rows]) - rewards[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()
