"""What is paid for replies on verl's way, by the real evaluator, without verl and Ray."""

import asyncio
import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kernelwright.rl_training.cluster import hosts
from kernelwright.rl_training.cluster.folder import write
from kernelwright.rl_training.cluster.host import EvaluationHost
from kernelwright.rl_training.cluster.plan import ClusterPlan
from kernelwright.rl_training.cluster.scored import NoVerdict
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.tasks import Tasks
from tests.helpers.rl_training import swish

pytestmark = pytest.mark.builds

TASK = swish.DATA.model_dump_json()


@pytest.fixture(scope="module")
def host() -> Iterator[EvaluationHost]:
    made = EvaluationHost(swish.evaluation())
    yield made
    made.close()


@pytest.fixture
def reward(host: EvaluationHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """reward.py as it is written, over this module's host."""
    monkeypatch.setattr(hosts._Here, "_host", host)
    write(
        tmp_path / "verl",
        Tasks((swish.DATA,), ()),
        ClusterPlan(algorithm="grpo", model="m", tasks=1),
        SCHEMES["kevin"],
        "c",
    )
    spec = importlib.util.spec_from_file_location("reward", tmp_path / "verl" / "reward.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scored(reward: ModuleType, text: str) -> dict[str, float]:
    found = reward.compute_score(
        data_source="kernelwright", solution_str=text, ground_truth=TASK, extra_info={"num_turns": 2}
    )
    numbers: dict[str, float] = asyncio.run(found)
    return numbers


@pytest.mark.slow
def test_a_right_file_earns_by_its_speedup_and_the_keys_are_always_the_same(reward: ModuleType) -> None:
    right = scored(reward, swish.RIGHT)
    assert right["correct"] == 1.0 and right["speedup"] > 0
    assert right["score"] == pytest.approx(0.3 + max(0.0, math.log(right["speedup"])))
    for text in (swish.WRONG, swish.BROKEN, "I would rather not.", ""):
        other = scored(reward, text)
        assert other["score"] == 0.0 and other["correct"] == 0.0
        assert set(other) == set(right)


def test_where_there_is_no_verdict_there_is_no_reward(
    host: EvaluationHost, reward: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host._grader, "patience_s", 0.0)
    late = swish.reply("x[i] / (1 + std::exp(-x[i])) + 1.0f")
    with pytest.raises(NoVerdict, match="no verdict came in time"):
        scored(reward, late)


def test_a_task_that_does_not_work_is_not_the_reply_s_fault(reward: ModuleType) -> None:
    broken = swish.TASK.model_copy(
        update={"source": swish.TASK.source.replace("torch.sigmoid", "torch.sigmoyd")}
    )
    task = swish.DATA.model_copy(update={"task": broken}).model_dump_json()
    found = reward.compute_score("kernelwright", swish.RIGHT, task)
    with pytest.raises(NoVerdict, match="sigmoyd"):
        asyncio.run(found)


def test_turns_are_credited_with_what_they_lead_to(host: EvaluationHost) -> None:
    begun = host.begin(TASK, 3)
    assert host.answer(begun.key, swish.BROKEN) is not None
    after = host.answer(begun.key, swish.WRONG)
    assert after is not None and "Result: wrong_output" in after[-1].content
    assert host.answer(begun.key, swish.RIGHT) is None
    broken, wrong, right = host.end(begun.key)
    assert right.score is not None and right.score >= 0.3
    assert wrong.score == pytest.approx(0.4 * right.score)
    assert broken.score == pytest.approx(0.16 * right.score)
    assert wrong.numbers()["correct"] == 0.0
    assert host._open == {}


def test_a_verdict_that_fails_to_come_leaves_its_turns_without_credit(
    host: EvaluationHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = host.begin(TASK, 3)
    assert host.answer(begun.key, swish.BROKEN) is not None
    monkeypatch.setattr(host._grader, "patience_s", 0.0)
    assert host.answer(begun.key, swish.reply("x[i] / (1 + std::exp(-x[i])) + 1.00f")) is None
    first, second = host.end(begun.key)
    assert first.score is None and second.score is None  # a later reward that is not known is no zero
    with pytest.raises(NoVerdict):
        first.numbers()


def test_many_ask_at_a_time_and_one_is_timed(host: EvaluationHost) -> None:
    async def all_at_once() -> list[object]:
        return await asyncio.gather(
            *(asyncio.to_thread(host.judge, TASK, text) for text in (swish.RIGHT, swish.WRONG) * 4)
        )

    found = asyncio.run(all_at_once())
    assert [one.outcome.kind for one in found] == ["correct", "failed"] * 4  # type: ignore[attr-defined]
