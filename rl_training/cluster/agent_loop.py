"""verl's agent loop over a Rollout: each turn is a separate sample with a complete prompt.

verl's trainer "v1" takes several outputs of one rollout, but gives all of them the reward of the last;
`TurnOutput` keeps its own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.utils.profiler import simple_timer

from kernelwright.agent.llm.model import Message
from kernelwright.rl_training.cluster.host import Begun, EvaluationSettings
from kernelwright.rl_training.cluster.hosts import Ask, asker
from kernelwright.rl_training.cluster.scored import NoVerdict, Scored
from kernelwright.rl_training.environment.completions import graded_text

_GREEDY = {"temperature": 0, "top_p": 1.0, "top_k": -1}


class TurnOutput(AgentLoopOutput):
    """Output of one turn. `credit`: its own reward, whatever verl does to `reward_score`."""

    credit: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        output: dict[str, Any] = super().as_dict()
        credit = output.pop("credit")
        output["rm_scores"][-1] = credit
        return output


class TurnByTurn(AgentLoopBase):
    """Agent loop of at most `turns` replies, each of which is evaluated before the next.

    `greedy_baseline` (ReMax, arXiv:2310.10505): subtract the score of a greedy reply to the same prompt,
    except in validation, where replies are greedy themselves. Raises NoVerdict, which verl treats as a failed
    rollout, if there is nothing to learn from.
    """

    settings: Path  # evaluation.json

    def __init__(self, *args: Any, turns: int = 1, greedy_baseline: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns, self._greedy_baseline = turns, greedy_baseline
        self._evaluation = EvaluationSettings.read(self.settings)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[TurnOutput]:
        task, priority = kwargs["reward_model"]["ground_truth"], int(kwargs.get("priority", 0))
        ask = asker(self._evaluation, task)
        walked = await self._walk(ask, task, sampling_params, priority)
        if self._greedy_baseline and sampling_params.get("temperature", 1.0) > 0:
            greedy = await self._walk(ask, task, {**sampling_params, **_GREEDY}, priority)
            for output in walked:
                output.credit -= greedy[0].credit
                output.reward_score = output.credit
        return walked

    async def _walk(
        self, ask: Ask, task: str, sampling_params: dict[str, Any], priority: int
    ) -> list[TurnOutput]:
        """Run one rollout and return the turns with something to learn from, at least one."""
        begun: Begun = await ask("begin", task, self._turns)
        outputs, scores = [], None
        messages: Sequence[Message] | None = begun.messages
        try:
            while messages:
                output = await self._turn(messages, sampling_params, priority)
                if output is None:
                    break
                outputs.append(output)
                reply = graded_text(self.tokenizer, output.prompt_ids, output.response_ids)
                timed: dict[str, float] = {}
                with simple_timer("compute_score", timed):
                    messages = await ask("answer", begun.key, reply)
                output.metrics.compute_score = timed["compute_score"]
        finally:
            scores = await ask("end", begun.key)
        return _credited(outputs, scores)

    async def _turn(
        self, messages: Sequence[Message], sampling_params: dict[str, Any], priority: int
    ) -> TurnOutput | None:
        """Generate a reply; None if the prompt is too long, since verl would cut off its beginning."""
        prompt = await self.ct_build_initial_tokens([message.model_dump() for message in messages])
        if len(prompt) >= self.rollout_config.prompt_length:
            return None
        metrics: dict[str, Any] = {}
        with simple_timer("generate_sequences", metrics):
            made = await self.server_manager.generate(
                request_id=uuid4().hex,
                prompt_ids=prompt,
                sampling_params=sampling_params,
                priority=priority,
            )
        most = self.rollout_config.response_length
        logs = made.log_probs[:most] if made.log_probs else None
        preempted = made.num_preempted if made.num_preempted is not None else -1
        return TurnOutput(
            prompt_ids=prompt,
            response_ids=made.token_ids[:most],
            response_mask=[1] * len(made.token_ids[:most]),
            response_logprobs=logs,
            metrics={**metrics, "num_preempted": preempted},
            extra_fields=dict(made.extra_fields),  # the versions of the weights, for the limit of staleness
        )


def _credited(outputs: Sequence[TurnOutput], scores: Sequence[Scored]) -> list[TurnOutput]:
    known = []
    for output, one in zip(outputs, scores, strict=True):
        if one.score is None:
            continue
        output.credit = output.reward_score = one.score
        output.num_turns = 2 * len(outputs)  # as verl counts them, questions and answers
        output.extra_fields |= {"reward_extra_info": one.numbers(), "turn_scores": [], "tool_rewards": []}
        known.append(output)
    if not known:
        why = scores[-1].outcome.reason if scores else "the first prompt is too long"
        raise NoVerdict(why or "the evaluator has no verdict")
    return known
