"""Resources server for NeMo Gym, of one turn: the agent's last answer is built, verified and timed.

    gym env start --resources-server kernelwright --model-type vllm_model      # in DIR
    python -m kernelwright_env.nemo_gym_server train > train.jsonl             # its data

NeMo Gym has no value for "no verdict" before its `judge` module: there the row goes to its failures, to be
tried again, and is in no mean. In releases without it the request fails (503), never with a 0.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from fastapi import HTTPException
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)

from .settings import connect, rows

try:
    from nemo_gym.judge import JudgeError
except ImportError:
    JudgeError = None


class KernelRunRequest(BaseRunRequest):
    """A row. `answer`: the task, as the server of evaluations takes it."""

    answer: str


class KernelVerifyRequest(KernelRunRequest, BaseVerifyRequest):
    """A row with the agent's response."""


class KernelVerifyResponse(BaseVerifyResponse):
    """A reward with what it is made of."""

    answer: str
    verdict: str | None
    reason: str
    correct: float
    speedup: float


class KernelResourcesServer(SimpleResourcesServer):
    """Server of rewards."""

    config: BaseResourcesServerConfig

    async def verify(self, body: KernelVerifyRequest) -> KernelVerifyResponse:
        """Return the reward of a response."""
        client = connect()
        graded = await client.apart(client.grade, body.answer, _text(body.response))
        if graded.reward is None:
            if JudgeError is not None:
                raise JudgeError(graded.reason)
            raise HTTPException(503, f"no verdict: {graded.reason}")
        return KernelVerifyResponse(
            **body.model_dump(),
            reward=graded.reward,
            verdict=graded.verdict,
            reason=graded.reason,
            **graded.numbers,
        )


def rows_for_nemo_gym(split: str = "train") -> Iterator[dict[str, Any]]:
    """Yield the rows of a split as NeMo Gym's data have them."""
    for row in rows(split):
        yield {
            "responses_create_params": {"input": row.prompt},
            "answer": row.answer,
            "agent_ref": {"type": "responses_api_agents", "name": "kernelwright_simple_agent"},
            **row.info,
        }


def _text(response: Any) -> str:
    """Return the text of the last message of a response."""
    messages = [item for item in response.output if item.type == "message" and item.role == "assistant"]
    if not messages:
        return ""
    return "".join(part.text for part in messages[-1].content if part.type == "output_text")


if __name__ == "__main__":
    for found in rows_for_nemo_gym(*sys.argv[1:2]):
        print(json.dumps(found))
