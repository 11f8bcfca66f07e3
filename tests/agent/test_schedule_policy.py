"""The network of a policy of schedules, and the judge that asks it first."""

import copy
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("transformers")
import torch

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.policy import network
from kernelwright.agent.tuner.policy.features import Words, features
from kernelwright.agent.tuner.policy.judge import PolicyJudge, TrainedPolicy
from kernelwright.agent.tuner.policy.space import ScheduleSpace
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Advice, Task
from tests.helpers.builtin.schedules import space_of, task_of
from tests.helpers.results import run_factory

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def spaces() -> list[ScheduleSpace]:
    return [space_of("torch.erf(torch.softmax(torch.tanh(x), dim=-1))"), space_of("torch.tanh(x).sum(-1)")]


@pytest.fixture(scope="module")
def folder(spaces: list[ScheduleSpace], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("policy")
    words = Words(word for space in spaces for word in features(space.graph))
    network.begin(words.known, out, layers=1, width=32, seed=0)
    return out


@pytest.fixture(scope="module")
def policy(folder: Path) -> TrainedPolicy:
    return TrainedPolicy.load(folder)


def prompts(policy: TrainedPolicy, spaces: Sequence[ScheduleSpace], count: int) -> dict[str, torch.Tensor]:
    words = Words(policy.tokenizer.get_vocab())
    asked = [[{"role": "user", "content": words.prompt(space)}] for space in spaces for _ in range(count)]
    return policy.tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
    )


def drawn(policy: TrainedPolicy, asked: dict[str, torch.Tensor]) -> torch.Tensor:
    torch.manual_seed(0)
    return policy.model.generate(**asked, max_new_tokens=40, do_sample=True, top_k=0)


def test_every_reply_is_a_line(policy: TrainedPolicy, spaces: list[ScheduleSpace]) -> None:
    """Untrained weights, blown up: whatever the logits, an invalid token is never drawn."""
    asked = prompts(policy, spaces, 100)
    before = policy.model.lm_head.weight.clone()
    try:
        with torch.no_grad():
            policy.model.lm_head.weight[:, : policy.model.config.hidden_size].mul_(300)
        ids = drawn(policy, asked)
    finally:
        with torch.no_grad():
            policy.model.lm_head.weight.copy_(before)
    texts = policy.tokenizer.batch_decode(ids[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    assert all(spaces[place // 100].is_line(text) for place, text in enumerate(texts))


def test_a_new_policy_draws_about_uniformly(policy: TrainedPolicy, spaces: list[ScheduleSpace]) -> None:
    asked = prompts(policy, spaces[:1], 300)
    ids = drawn(policy, asked)
    texts = policy.tokenizer.batch_decode(ids[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    for token in spaces[0].slots[0].tokens:
        assert 0.3 < sum(token in text.split() for text in texts) / 300 < 0.7
    assert len(set(texts)) > 250


def test_probabilities_in_an_update_are_those_of_sampling(
    policy: TrainedPolicy, spaces: list[ScheduleSpace]
) -> None:
    """One forward over a whole reply has at each place the distribution that the place was drawn from."""
    ids = drawn(policy, prompts(policy, spaces[:1], 2))
    length = ids.shape[1]
    with torch.no_grad():
        whole = policy.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.softmax(-1)
        for end in range(length - 12, length):
            part = policy.model(
                input_ids=ids[:, :end], attention_mask=torch.ones_like(ids[:, :end]), logits_to_keep=1
            )
            assert torch.allclose(part.logits[:, -1].softmax(-1), whole[:, end - 1], atol=1e-5)
    taken = whole[:, :-1].gather(2, ids[:, 1:, None])[:, -12:]
    assert (taken > 0).all() and (whole == 0).any()


def test_a_trainer_sees_the_same_distribution(policy: TrainedPolicy, spaces: list[ScheduleSpace]) -> None:
    """TRL multiplies hidden states by the head's weights by itself: the grammar must hold there, too."""
    utils = pytest.importorskip("trl.trainer.utils")
    ids = drawn(policy, prompts(policy, spaces[:1], 4))
    mask = torch.ones_like(ids)
    labels = ids.masked_fill(torch.arange(ids.shape[1]) < ids.shape[1] - 12, -100)
    with torch.no_grad():
        own = policy.model(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)
        fused = copy.deepcopy(policy.model)
        utils.add_fused_lm_head(fused, outputs=("log_probs", "entropy"))
        seen = fused(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    taken = own[:, :-1].gather(2, ids[:, 1:, None])[:, -12:, 0]
    assert torch.allclose(seen.log_probs[:, -12:], taken, atol=1e-4)
    assert (seen.entropy[:, -12:] <= math.log(9) + 1e-4).all()  # no knob has more than nine values


def test_an_update_leaves_the_grammar_alone(folder: Path, spaces: list[ScheduleSpace]) -> None:
    policy = TrainedPolicy.load(folder)
    width = policy.model.config.hidden_size
    forbidden = policy.model.lm_head.weight[:, width:] < -1e3
    optimizer = torch.optim.AdamW(policy.model.parameters(), 0.1, weight_decay=0.0)
    ids = drawn(policy, prompts(policy, spaces[:1], 8))
    for _ in range(3):
        logs = policy.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.log_softmax(-1)
        optimizer.zero_grad()
        logs[:, :-1].gather(2, ids[:, 1:, None])[:, -8:].mean().backward()
        optimizer.step()
    assert forbidden.any() and (policy.model.lm_head.weight[:, width:][forbidden] == -1e4).all()


def test_gradients_and_entropy_are_numbers(policy: TrainedPolicy, spaces: list[ScheduleSpace]) -> None:
    ids = drawn(policy, prompts(policy, spaces[:1], 2))
    logs = policy.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.log_softmax(-1)
    (-(logs.exp() * logs).sum()).backward()
    gradients = [p.grad for p in policy.model.parameters() if p.grad is not None]
    assert gradients and all(torch.isfinite(each).all() for each in gradients)
    policy.model.zero_grad()


def test_a_folder_without_a_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no policy of schedules"):
        TrainedPolicy.load(tmp_path)


def test_it_is_smaller_than_five_megabytes(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < 5_000_000


class Rules:
    """A judge that has nothing to say."""

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        return None


def test_the_policy_is_asked_first_and_then_the_rules(
    policy: TrainedPolicy, spaces: list[ScheduleSpace]
) -> None:
    space, task = spaces[0], task_of(spaces[0], "softmax")
    judge = PolicyJudge(policy, lambda _: space, Rules(), first=3)
    history: list[Attempt] = []
    while (advice := judge.advise(task, history)) is not None:
        assert advice.method == "try what a policy wrote" and advice.schedule
        made = policy.candidates(task, space, 3)[len(history)]
        assert dict(made.schedule) == dict(advice.schedule)
        history.append(Attempt(made, run_factory.evaluation(task, made, eager=1.5), None, advice))
    assert len(history) == 3
    resumed = PolicyJudge(policy, lambda _: space, Rules(), first=3)
    assert resumed.advise(task, history[:1]) == history[1].advice
