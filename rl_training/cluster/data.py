"""Tasks as rows for verl."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.agent.llm.coder import asked_for
from kernelwright.rl_training.cluster.overrides import LOOP
from kernelwright.rl_training.environment.task_data import TaskData

if TYPE_CHECKING:
    import pyarrow

SOURCE = "kernelwright"


def rows(tasks: Sequence[TaskData], split: str, own_loop: bool) -> Iterator[dict[str, Any]]:
    """Yield a row per task.

    `ground_truth` is the whole task, to evaluate replies; policies see only the prompt.
    """
    for index, data in enumerate(tasks):
        messages = asked_for(data.situation, data.language, (), None).messages
        yield {
            "data_source": SOURCE,
            "prompt": [message.model_dump() for message in messages],
            "ability": data.family,
            "reward_model": {"style": "rule", "ground_truth": data.model_dump_json()},
            "extra_info": {"index": index, "split": split, "task": data.task.id, "level": data.task.level},
            "agent_name": LOOP if own_loop else "single_turn_agent",
        }


def schema() -> "pyarrow.Schema":
    import pyarrow as pa

    text, count = pa.string(), pa.int64()
    return pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct({"index": count, "split": text, "task": text, "level": count}),
            "agent_name": text,
        }
    )
