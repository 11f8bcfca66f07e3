"""Separation of a model's answer from its thinking, where a server leaves both in one text.

    <think>a draft</think>the answer      most models; a chat template may open the thought in the prompt
    [THINK]a draft[/THINK]the answer      Magistral
    ◁think▷a draft◁/think▷the answer      Kimi
    <|channel|>analysis<|message|>a draft<|end|>
        <|start|>assistant<|channel|>final<|message|>the answer      gpt-oss

A draft in a thought was not submitted: whatever reads replies reads the answer only.
"""

import re

_NAMES = r"(?:seed:)?(?:think|thinking|thought|reasoning)"
_OPENED = re.compile(rf"<{_NAMES}>|\[THINK\]|◁think▷|<\|begin_of_thought\|>", re.IGNORECASE)
_CLOSED = re.compile(rf"</{_NAMES}>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>", re.IGNORECASE)
_CHANNEL = re.compile(r"<\|channel\|>")
_FINAL = re.compile(r"<\|channel\|>\s*final[^<]{0,40}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>")
_MESSAGE_END = re.compile(r"<\|(?:end|return|start|call)\|>")
_BARE_FINAL = "assistantfinal"  # what is left of gpt-oss's marks without special tokens


def without_thought(text: str) -> tuple[str, str]:
    """Return the answer and the thought of a text.

    The answer is what follows the last thought. One that is never closed goes to the end of the text: there
    is no answer then, but what stands before it.
    """
    if _CHANNEL.search(text):
        *_, answer = _FINAL.split(text) if _FINAL.search(text) else ("",)
        thought = text[: len(text) - len(answer)]
        return _MESSAGE_END.split(answer, maxsplit=1)[0], thought
    if text.startswith("analysis") and _BARE_FINAL in text:
        thought, _, answer = text.rpartition(_BARE_FINAL)
        return answer, thought
    closed = max((mark.end() for mark in _CLOSED.finditer(text)), default=0)
    thought, answer = text[:closed], text[closed:]
    opened = _OPENED.search(answer)
    if opened is None:
        return answer, thought
    return answer[: opened.start()], thought + answer[opened.start() :]


def without_marks(thought: str) -> str:
    """Return a thought without the tags around it."""
    return _CLOSED.sub("", _OPENED.sub("", thought))


def closes_unopened(text: str) -> bool:
    """Return True if a text closes a thought that it does not open: the prompt has opened it."""
    closed = _CLOSED.search(text)
    return closed is not None and _OPENED.search(text, 0, closed.start()) is None


def is_thought_mark(token: str) -> bool:
    """Return True for a token that separates thoughts from answers."""
    marks = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")
    return token in marks or any(mark.fullmatch(token) for mark in (_OPENED, _CLOSED))


def begins_in_thought(prompt: str) -> bool:
    """Return True if a prompt ends in a thought that it opens, so that the reply begins in it."""
    opened = max((mark.end() for mark in _OPENED.finditer(prompt)), default=-1)
    return opened >= 0 and not prompt[opened:].strip()
