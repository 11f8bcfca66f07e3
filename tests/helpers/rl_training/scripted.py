"""A stand-in for verl's client of a rollout engine, which needs a GPU: replies that are given beforehand."""

import asyncio
from collections.abc import Sequence
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from kernelwright.rl_training.cluster.scored import NoVerdict


class Scripted:
    """The n-th rollout gets the n-th list of replies, one a call; greedy calls get `greedy`.

    A rollout whose replies have run out has no verdict.
    """

    def __init__(self, tokenizer: Any, rollouts: Sequence[Sequence[str]], greedy: str = "") -> None:
        self.tokenizer, self._greedy = tokenizer, greedy
        self._waiting = [list(replies) for replies in rollouts]
        self._of: dict[asyncio.Task[Any] | None, list[str]] = {}  # a rollout is a task of its own

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        if sampling_params["temperature"] == 0:
            reply = self._greedy
        else:
            task = asyncio.current_task()
            if task not in self._of:
                self._of[task] = self._waiting.pop(0)
            if not self._of[task]:
                raise NoVerdict("there are no more replies")
            reply = self._of[task].pop(0)
        tokens = [*self.tokenizer.encode(reply), self.tokenizer.eos_token_id]
        versions = {"min_global_steps": 0, "max_global_steps": 0}
        return TokenOutput(token_ids=tokens, log_probs=[-1.0] * len(tokens), extra_fields=versions)
