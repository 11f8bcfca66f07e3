"""The embedded policy: a Llama of a few hundred thousand parameters, initialized at random."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.rl_training.demo.settings import DemoSettings
from kernelwright.rl_training.demo.tokenizer import shown, trained

if TYPE_CHECKING:
    from kernelwright.rl_training.trainers.policy import Policy


def begin(rows: Sequence[dict[str, Any]], settings: DemoSettings, seed: int, folder: Path) -> None:
    """Write a new policy, with a tokenizer trained on these samples, as `save_pretrained` does."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = trained([shown([*row["prompt"], *row["completion"]]) for row in rows])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=5 * settings.width // 2,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.width // 16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    model.generation_config.update(do_sample=True, top_p=settings.top_p, top_k=0)  # served, it samples, too
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def replies(
    folder: Path,
    prompts: Sequence[Sequence[dict[str, str]]],
    count: int,
    settings: DemoSettings,
    seed: int,
) -> list[list[str]]:
    """Return `count` replies to each prompt, sampled as in RL."""
    import torch

    from kernelwright.rl_training.trainers.policy import load_policy

    policy = load_policy(str(folder))
    torch.manual_seed(seed)
    return [sampled(policy, prompt, count, settings.longest, settings.top_p) for prompt in prompts]


def sampled(
    policy: "Policy", prompt: Sequence[Mapping[str, str]], count: int, longest: int, top_p: float = 1.0
) -> list[str]:
    """Return `count` replies to a prompt, from torch's generator as it stands; `longest`: tokens of one."""
    import torch

    asked = policy.tokenizer.apply_chat_template(
        [[dict(message) for message in prompt]] * count,
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        made = policy.model.generate(**asked, max_new_tokens=longest, do_sample=True, top_k=0, top_p=top_p)
    replies = made[:, asked["input_ids"].shape[1] :]
    return policy.tokenizer.batch_decode(replies, skip_special_tokens=True)
