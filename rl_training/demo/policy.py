"""The embedded policy: a Llama of a few hundred thousand parameters, initialized at random."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelwright.rl_training.demo.settings import DemoSettings
from kernelwright.rl_training.demo.tokenizer import shown, trained


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
    found = []
    for prompt in prompts:
        asked = policy.tokenizer.apply_chat_template(
            [list(prompt)] * count, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        with torch.no_grad():
            made = policy.model.generate(
                **asked, max_new_tokens=settings.longest, do_sample=True, top_k=0, top_p=settings.top_p
            )
        found.append(
            policy.tokenizer.batch_decode(made[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        )
    return found
