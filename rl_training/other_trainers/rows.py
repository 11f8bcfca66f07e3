"""Tasks as rows that any trainer can read: `prompt`, `answer` and `info`."""

from typing import Any

from kernelwright.agent.llm.coder import asked_for
from kernelwright.kernelbench.remote.wire import SentTask
from kernelwright.rl_training.environment.task_data import TaskData


def row(data: TaskData) -> dict[str, Any]:
    """Return the row of a task.

    `prompt`: the first prompt, as messages. `answer`: the task as a server of evaluations takes it, as JSON:
    what a reply is held against. `info`: what is known of the task.
    """
    messages = asked_for(data.situation, data.language, (), None).messages
    return {
        "prompt": [message.model_dump() for message in messages],
        "answer": SentTask.of(data.task).model_dump_json(exclude_defaults=True),
        "info": {
            "task": data.task.id,
            "level": data.task.level,
            "family": data.family,
            "language": data.language,
            "device": data.target.device,
            "chip": data.target.fingerprint.chip,
        },
    }
