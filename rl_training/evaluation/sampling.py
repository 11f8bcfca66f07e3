"""Replies of a policy to prompts, by transformers' own generation."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from kernelwright.agent.llm.model import Message
from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.environment.completions import graded_text


class SamplingSettings(Record):
    """Settings of sampling. `at_once`: replies that are generated together."""

    samples: int = Field(default=16, gt=0)
    temperature: float = Field(default=1.0, ge=0)  # 0: the likeliest token, so all replies are one
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_completion: int = Field(default=8192, gt=0)
    at_once: int = Field(default=16, gt=0)
    seed: int = 0


def sampled(
    model: Any, tokenizer: Any, messages: Sequence[Message], task: str, settings: SamplingSettings
) -> Iterator[tuple[int, str]]:
    """Yield replies to a prompt with their numbers, from the first on.

    Each batch has a seed of its own, so that an evaluation which goes on in the middle of a task is the same;
    torch's generators are afterwards as they were.
    """
    for first in range(0, settings.samples, settings.at_once):
        count = min(settings.at_once, settings.samples - first)
        texts = _batch(model, tokenizer, messages, task, first, count, settings)
        yield from enumerate(texts, first)


def _batch(
    model: Any,
    tokenizer: Any,
    messages: Sequence[Message],
    task: str,
    first: int,
    count: int,
    settings: SamplingSettings,
) -> list[str]:
    import torch

    asked = tokenizer.apply_chat_template(
        [[message.model_dump() for message in messages]] * count,
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    ).to(model.device)
    greedy = settings.temperature == 0
    how = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0} if not greedy else {}
    digest = hashlib.sha256(f"{settings.seed} {task} {first}".encode()).digest()
    devices = [model.device] if model.device.type == "cuda" else []
    training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            torch.manual_seed(int.from_bytes(digest[:7], "big"))
            made = model.generate(
                **asked, max_new_tokens=settings.max_completion, do_sample=not greedy, use_cache=True, **how
            )
    finally:
        model.train(training)
    prompt = asked["input_ids"][0].tolist()
    return [graded_text(tokenizer, prompt, row) for row in made[:, len(prompt) :].tolist()]
