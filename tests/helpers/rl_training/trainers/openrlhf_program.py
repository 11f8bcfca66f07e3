"""OpenRLHF: its own executors of one and of several turns, over an engine that says what it is told."""

import asyncio
import json
import sys
from types import SimpleNamespace

import kernelwright_env.openrlhf_agent as agent_file
import kernelwright_env.openrlhf_reward as reward_file
from openrlhf.utils.agent import SingleTurnAgentExecutor

REPLIES = json.loads(sys.argv[1])


class CharacterTokenizer:
    """A token is a character."""

    def __call__(self, text: str, **_: object) -> dict[str, object]:
        import torch

        return {"input_ids": torch.tensor([[ord(character) for character in text]])}

    def decode(self, tokens: list[int], **_: object) -> str:
        return "".join(map(chr, tokens))


class ScriptedEngine:
    """An engine whose only reply is this one."""

    def __init__(self, reply: str) -> None:
        self.reply = reply

    async def generate(
        self, prompt: list[int], parameters: object, multi_modal_data: object = None
    ) -> object:
        tokens = [ord(character) for character in self.reply]
        output = SimpleNamespace(token_ids=tokens, text=self.reply, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


def executed(executor: object, reply: str) -> dict[str, object]:
    parameters = SimpleNamespace(max_tokens=None, logprobs=None)
    try:
        output = asyncio.run(
            executor.execute(  # type: ignore[attr-defined]
                "Write it.",
                "builtin:level1/relu",
                parameters,
                1_000_000,
                CharacterTokenizer(),
                ScriptedEngine(reply),
            )
        )
    except Exception as error:  # noqa: BLE001 - the test says which it is
        return {"error": type(error).__name__}
    reward = output["reward"]
    return {"reward": float(reward) if reward is not None else None, "replies": len(output["action_ranges"])}


found = {
    name: {
        "one": executed(SingleTurnAgentExecutor(reward_file.__file__), reply),
        "several": executed(agent_file.AgentExecutor(), reply),
    }
    for name, reply in REPLIES.items()
}
print(json.dumps(found))
