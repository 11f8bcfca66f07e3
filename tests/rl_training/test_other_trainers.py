"""The package for other trainers: its client, and the modules that need none of the trainers' libraries."""

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright import cli
from tests.helpers.rl_training.packaged import WrittenPackage, tasks, written
from tests.helpers.rl_training.served import FilePool, file, served

ROWS = {row.task.id: row for row in tasks().train}


def reply(speedup: float, mark: str = "") -> str:
    return f"I fuse it.\n```python\n{file(speedup, mark)}```\n"


@pytest.fixture
def pool() -> FilePool:
    return FilePool()


@pytest.fixture
def package(tmp_path: Path, pool: FilePool) -> Iterator[WrittenPackage]:
    with (
        served(tmp_path / "requests.db", pool) as address,
        written(tmp_path / "environment", address, turns=2) as found,
    ):
        yield found


def test_a_reply_is_graded(package: WrittenPackage, pool: FilePool) -> None:
    settings = package.module("settings")
    client = settings.connect()
    row = next(settings.rows())
    graded = client.grade(row.answer, reply(1.5))
    assert graded.verdict == "correct" and graded.reward > 1.5 and graded.speedup > 1
    assert graded.numbers == {"correct": 1.0, "speedup": graded.speedup}
    wrong = client.grade(row.answer, reply(1.0, "wrong"))
    assert (wrong.reward, wrong.known, wrong.verdict) == (0.0, 0.0, "wrong_output")
    assert client.grade(row.answer, "").reward == 0.0
    assert client.grade(row.answer, "\ud800" + "x" * 2_000_000).reward == 0.0  # endless, half a character
    assert client.grade("builtin:level1/relu", reply(1.5)).reward == graded.reward


def test_no_verdict_is_not_a_reward(package: WrittenPackage) -> None:
    client_module, settings = package.module("client"), package.module("settings")
    graded = settings.connect().grade("builtin:level1/relu", reply(1, "dies"))
    assert graded.reward is None and "died" in graded.reason
    with pytest.raises(client_module.UnknownRewardError, match="died"):
        _ = graded.known


def test_a_server_that_is_away_gives_no_verdict(package: WrittenPackage, tmp_path: Path) -> None:
    client_module = package.module("client")
    away = client_module.RewardClient("http://127.0.0.1:9", away_s=0.3)
    graded = away.grade("builtin:level1/relu", reply(1.5))
    assert graded.reward is None and "does not answer" in graded.reason
    with pytest.raises(client_module.UnknownRewardError, match="does not answer"):
        away.begin("builtin:level1/relu")


def test_what_the_server_refuses_says_what_to_do(package: WrittenPackage, tmp_path: Path) -> None:
    client_module, settings = package.module("client"), package.module("settings")
    with pytest.raises(client_module.RefusedError, match="not known here — GET /v1/tasks"):
        settings.connect().grade("builtin:level9/none", reply(1.5))
    with served(tmp_path / "closed.db", FilePool(), tokens=["a" * 32]) as address:
        with pytest.raises(client_module.RefusedError, match="token is missing or wrong"):
            client_module.RewardClient(address).grade("builtin:level1/relu", reply(1.5))
        known = client_module.RewardClient(address, "a" * 32, "kevin")
        assert known.grade("builtin:level1/relu", reply(1.5)).reward > 1.5
        assert "a" * 32 not in repr(known)


def test_a_rollout_of_two_turns(package: WrittenPackage) -> None:
    settings = package.module("settings")
    client, row = settings.connect(), next(settings.rows())
    begun = client.begin(row.answer, 2)
    assert begun.messages and not begun.turns
    first = client.answer(begun, reply(1, "wrong"))
    assert "it is wrong" in first.feedback and not first.ended
    assert client.answer(begun, reply(1, "wrong")) == first  # sent twice, it counts once
    last = client.answer(first, reply(2.0))
    assert last.ended and last.total == pytest.approx(0.4 * last.turns[1].reward)


def test_a_rollout_without_a_verdict_has_no_return(package: WrittenPackage) -> None:
    client_module, settings = package.module("client"), package.module("settings")
    client = settings.connect()
    ended = client.answer(client.begin("builtin:level1/relu", 2), reply(1, "dies"))
    assert ended.ended and ended.turns[-1].reward is None
    with pytest.raises(client_module.UnknownRewardError, match="died"):
        _ = ended.total


def test_many_wait_at_a_time(package: WrittenPackage, pool: FilePool) -> None:
    client = package.module("settings").connect()

    async def all_of_them() -> list[float]:
        graded = (client.apart(client.grade, "builtin:level1/relu", reply(1 + n / 10)) for n in range(40))
        return [one.known for one in await asyncio.gather(*graded)]

    rewards = asyncio.run(all_of_them())
    assert rewards == sorted(rewards) and len(set(rewards)) == 40 == len(pool.counts)


def test_rows_have_a_prompt_an_answer_and_info(package: WrittenPackage) -> None:
    found = list(package.module("settings").rows())
    assert [row.info["task"] for row in found] == list(ROWS)
    assert found[0].prompt[-1]["role"] == "user" and "relu" in found[0].prompt[-1]["content"].lower()
    assert json.loads(found[0].answer)["source"] == next(iter(ROWS.values())).task.source
    assert [row.info["task"] for row in package.module("settings").rows("test")] == ["builtin:level1/gelu"]


def test_slime_leaves_out_what_has_no_verdict(package: WrittenPackage) -> None:
    module = package.module("slime_reward")
    samples = [
        SimpleNamespace(
            label="builtin:level1/relu", response=text, metadata={}, remove_sample=False, group_index=group
        )
        for group, text in [
            (0, reply(2.0)),
            (0, reply(1, "wrong")),
            (0, reply(1, "dies")),
            (1, reply(1, "dies")),
        ]
    ]
    for sample in samples:
        sample.reward = asyncio.run(module.reward(SimpleNamespace(), sample))
    assert samples[0].reward > 2 and samples[1].reward == 0.0
    assert math.isnan(samples[2].reward) and [s.remove_sample for s in samples] == [False, False, True, True]
    raw, normalized = module.advantages(SimpleNamespace(grpo_std_normalization=False), samples)
    mean = samples[0].reward / 2
    assert raw == pytest.approx([2 * mean, 0, mean, 0])
    assert normalized == pytest.approx([mean, -mean, 0, 0])


def test_slimes_own_reward_path_takes_it(package: WrittenPackage) -> None:
    types = pytest.importorskip("slime.utils.types", reason="slime is not installed")
    hub = pytest.importorskip("slime.rollout.rm_hub", reason="slime is not installed")
    arguments = SimpleNamespace(custom_rm_path="kernelwright_env.slime_reward.reward", rm_type=None)
    sample = types.Sample(label="builtin:level1/relu", response=reply(1, "dies"))
    assert math.isnan(asyncio.run(hub.async_rm(arguments, sample))) and sample.remove_sample
    right = types.Sample(label="builtin:level1/relu", response=reply(2.0))
    assert asyncio.run(hub.async_rm(arguments, right)) > 2 and not right.remove_sample


def test_verls_function_has_the_same_keys_and_raises_without_a_verdict(package: WrittenPackage) -> None:
    module, client_module = package.module("verl_reward"), package.module("client")
    found = [
        asyncio.run(module.compute_score("kernelwright", text, "builtin:level1/relu", {}))
        for text in (reply(2.0), reply(1, "wrong"))
    ]
    assert found[0].keys() == found[1].keys() and found[0]["score"] > 2 and found[1]["score"] == 0.0
    with pytest.raises(client_module.UnknownRewardError):
        asyncio.run(module.compute_score("kernelwright", reply(1, "dies"), "builtin:level1/relu"))


def test_the_package_can_be_installed_and_needs_nothing(tmp_path: Path) -> None:
    with written(tmp_path / "environment", "http://127.0.0.1:9"):
        pass
    code = "import kernelwright_env.client, kernelwright_env.settings as s; print(len(list(s.rows())))"
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path / "environment", capture_output=True, text=True
    )  # -S: none of the installed packages
    assert (found.returncode, found.stdout) == (0, "2\n"), found.stderr


def test_a_scheme_with_a_function_of_ones_own_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "mine.py").write_text("def reward(seen):\n    return 1.0\n")
    monkeypatch.setattr(
        sys, "argv",
        ["kernelwright", "train", "environment", "runs", "--out", str(tmp_path / "out"), "--reward", f"{tmp_path}/mine.py:reward"],
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "runs no function of yours" in capsys.readouterr().err
