"""Text of a policy's completion as it is graded: with the marks that separate thoughts from the answer."""

from collections.abc import Sequence
from typing import Any

from kernelwright.agent.llm.reply.thought import begins_in_thought, is_thought_mark

_LAST = 16  # tokens of a prompt, in which a chat template may open a thought


def graded_text(tokenizer: Any, prompt: Sequence[int], completion: Sequence[int]) -> str:
    """Decode a completion's token ids.

    A thought that the prompt opened is opened in the text, or an unfinished one would pass for an answer.
    Special tokens are left out, except for marks of thoughts.
    """
    opened = "<think>\n" if begins_in_thought(tokenizer.decode(list(prompt[-_LAST:]))) else ""
    special = tokenizer.all_special_tokens
    if not any(is_thought_mark(token) for token in special):
        return opened + str(tokenizer.decode(list(completion), skip_special_tokens=True))
    text = str(tokenizer.decode(list(completion), skip_special_tokens=False))
    for token in special:
        if not is_thought_mark(token):
            text = text.replace(token, "")
    return opened + text
