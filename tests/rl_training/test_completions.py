"""Graded text of a completion shows where its thought ends, as far as its tokens do."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kernelwright.agent.llm.reply.thought import without_thought
from kernelwright.rl_training.environment.completions import graded_text


def tokenizer(special: list[str], plain: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes with these added tokens."""
    alphabet = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|eos|>")
    found.add_special_tokens({"additional_special_tokens": special})
    found.add_tokens(plain)
    return found


@pytest.mark.parametrize(
    ("special", "plain", "prompt", "completion", "answer"),
    [
        ([], [], "Write it.", "a kernel<|eos|>", "a kernel"),
        ([], ["<think>", "</think>"], "Write it.", "<think>a draft</think>a kernel<|eos|>", "a kernel"),
        ([], ["<think>", "</think>"], "Write it.<think>\n", "a draft</think>a kernel<|eos|>", "a kernel"),
        ([], ["<think>", "</think>"], "Write it.<think>\n", "a draft", ""),  # cut off
        ([], ["<think>", "</think>"], "Write it.<think>\n\n</think>\n\n", "a kernel<|eos|>", "a kernel"),
        (["[THINK]", "[/THINK]"], [], "Write it.", "[THINK]a draft[/THINK]a kernel<|eos|>", "a kernel"),
        (["[THINK]", "[/THINK]"], [], "Write it.", "[THINK]a draft", ""),
        (
            ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>"],
            [],
            "Write it.<|start|>assistant",
            "<|channel|>analysis<|message|>a draft<|end|><|start|>assistant"
            "<|channel|>final<|message|>a kernel<|return|>",
            "a kernel",
        ),
    ],
)
def test_the_answer_is_told_from_the_thought(
    special: list[str], plain: list[str], prompt: str, completion: str, answer: str
) -> None:
    coder = tokenizer(special, plain)
    text = graded_text(coder, coder(prompt)["input_ids"], coder(completion)["input_ids"])
    assert without_thought(text)[0] == answer
