"""A policy for tests: a Llama of two layers with 32 channels, and a tokenizer of bytes with a few merges."""

from pathlib import Path

import pytest

CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# The beginnings of messages alone: whole prompts are thousands of such tokens.
BRIEF_CHAT = CHAT.replace("message['content']", "message['content'][:40]")
SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEXT = ["for (long i = 0; i < n; ++i) y[i] = x[i];", "Write a kernel in C++.", "You write kernels."]


def save(folder: Path, chat_template: str | None = CHAT, seed: int = 0, tied: bool = False) -> Path:
    """Written as `save_pretrained` does; the same for the same seed. `tied`: the last layer is the first."""
    pytest.importorskip("transformers")
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    if chat_template is not None:
        fast.chat_template = chat_template
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
