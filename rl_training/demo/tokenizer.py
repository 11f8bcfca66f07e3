"""A tokenizer trained on our own kernels, whose phrases are whole lines and paragraphs of code.

Kernels of one coder share much of their text. A line that many files have, or a paragraph, such as a function
of its header, is one token; the rest is byte-level BPE (Sennrich et al., arXiv:1508.07909) with numbers
apart. So a file has less than a hundred tokens on average, which a small model on a CPU can write in a second
or two.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SHARE = 0.01  # of the documents that have a line or paragraph for it to be a phrase
BPE_TOKENS = 1024
END, PAD = "<|end|>", "<|pad|>"
# Left out is what prompts tell every task alike, and what they say of the machine: its speed is measured
# again now and then, and so small a model is lost when a number is not the one it has always seen.
CHAT_TEMPLATE = """
{%- for message in messages if message['role'] != 'system' -%}
<|{{ message['role'] }}|>
{%- set parts = message['content'].split('# The machine\n') -%}
{{- parts[0] -}}
{%- if parts|length > 1 -%}{{- parts[1].split('\n\n')[1:]|join('\n\n') -}}{%- endif -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
_SPECIAL = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>")


def shown(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the part of a conversation that the policy reads."""
    from jinja2 import Template

    rendered = Template(CHAT_TEMPLATE).render(messages=messages)
    return "\n".join(filter(None, re.split(r"<\|\w+\|>", rendered)))


def trained(documents: Sequence[str], share: float = SHARE, bpe_tokens: int = BPE_TOKENS) -> Any:
    """Train a `PreTrainedTokenizerFast` with a chat template."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    phrases = phrases_of(documents, share)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(?<![A-Za-z_\d])\d+|\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=bpe_tokens, initial_alphabet=alphabet, show_progress=False)
    # Each line once: what is not a phrase is put together from what lines are made of.
    distinct = sorted({line for document in documents for line in _lines(document)})
    tokenizer.train_from_iterator(distinct, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _SPECIAL])
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def phrases_of(documents: Sequence[str], share: float) -> list[str]:
    """Return lines and paragraphs that at least this share of the documents have, the commonest first."""
    least = max(2, round(share * len(documents)))
    counts = Counter(piece for document in documents for piece in set(_pieces(document)))
    return [piece for piece, count in counts.most_common() if count >= least]


def _pieces(document: str) -> Iterable[str]:
    yield from (line for line in _lines(document) if len(line) > 1)
    paragraphs = document.split("\n\n")
    yield from (f"{text}\n\n" for text in paragraphs[:-1] if "\n" in text)


def _lines(document: str) -> list[str]:
    return document.splitlines(keepends=True)
