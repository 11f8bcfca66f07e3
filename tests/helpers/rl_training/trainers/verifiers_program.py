"""verifiers: the taskset as an environment, and replies scored by its own rules."""

import asyncio
import json
import sys

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

REPLIES = json.loads(sys.argv[1])


async def scored(task: vf.Task, reply: str) -> dict[str, object]:
    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key),
        agent=vf.AgentInfo.model_construct(),
        root_reply=reply,
    )
    try:
        await task.score(trace)
    except vf.RolloutError as error:
        return {"error": type(error).__name__, "message": str(error), "rewards": dict(trace.rewards)}
    return {"reward": trace.reward, "metrics": dict(trace.metrics)}


env = load_environment(resolve_env_config({"taskset": {"id": "kernelwright-env"}}))
held_out = load_environment(resolve_env_config({"taskset": {"id": "kernelwright-env", "split": "test"}}))
tasks = list(env.taskset)
print(
    json.dumps(
        {
            "environment": type(env).__name__,
            "tasks": [task.key for task in tasks],
            "held_out": [task.key for task in held_out.taskset],
            "prompt": tasks[0].data.prompt_text,
            **{name: asyncio.run(scored(tasks[0], reply)) for name, reply in REPLIES.items()},
        }
    )
)
