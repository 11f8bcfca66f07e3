"""A judge that advises the schedules of a trained policy first, and then what the rules say."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.agent.builtin.compile import NothingToFuse
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.protocols import Attempt, Judge
from kernelwright.agent.tuner.policy.features import Words
from kernelwright.agent.tuner.policy.folder import require_policy
from kernelwright.agent.tuner.policy.space import ScheduleSpace
from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.records import Advice, Candidate, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from kernelwright.agent.tuner.policy.network import SchedulePolicy

_METHOD = "try what a policy wrote"
_DRAWS = 32  # lines, of which the likeliest are proposed: those drawn most often
_LONGEST = 160  # tokens of a line


@dataclass(frozen=True)
class TrainedPolicy:
    """A policy of schedules, as `train demo --space wide` writes it. Thread-safe."""

    model: "SchedulePolicy"
    tokenizer: "PreTrainedTokenizerFast"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def load(cls, folder: Path) -> "TrainedPolicy":
        """Load a policy. Raises UsageError, MissingPrerequisite."""
        try:
            from transformers import PreTrainedTokenizerFast
            from transformers.utils import logging

            from kernelwright.agent.tuner.policy.network import SchedulePolicy
        except ImportError:
            raise MissingPrerequisite(
                "a policy of schedules needs the package transformers", "pip install 'kernelwright[rl]'"
            ) from None
        require_policy(folder)
        logging.disable_progress_bar()
        model = SchedulePolicy.from_pretrained(str(folder)).eval()
        return cls(model, PreTrainedTokenizerFast.from_pretrained(str(folder)))

    def candidates(self, task: Task, space: ScheduleSpace, count: int) -> list[Candidate]:
        """Return up to `count` distinct files, the ones drawn most often first; the same for every call."""
        import torch

        prompt = Words(self.tokenizer.get_vocab()).prompt(space)
        asked = self.tokenizer.apply_chat_template(
            [[{"role": "user", "content": prompt}]] * _DRAWS,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        with self._lock, torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(int(task.sha256[:15], 16))
            drawn = self.model.generate(**asked, max_new_tokens=_LONGEST, do_sample=True, top_k=0)
        lines = self.tokenizer.batch_decode(drawn[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        files: dict[str, Candidate] = {}
        times: dict[str, int] = {}
        for line in lines:
            made = space.candidate(line)
            files.setdefault(made.sha256, made)
            times[made.sha256] = times.get(made.sha256, 0) + 1
        return [files[each] for each in sorted(files, key=lambda each: -times[each])[:count]]


@dataclass
class PolicyJudge:
    """Judge that advises `first` schedules of a policy for a task, and then asks `rules`.

    `space` returns the schedules of a task; where it raises Untraceable or NothingToFuse, the rules are asked
    from the beginning. What a policy draws is repeatable, so a resumed run continues as it would have.
    """

    policy: TrainedPolicy
    space: Callable[[Task], ScheduleSpace]
    rules: Judge
    first: int = 4
    _drawn: dict[str, list[Candidate]] = field(default_factory=dict)

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        tried = {attempt.candidate.sha256 for attempt in history}
        advised = [attempt.advice.schedule for attempt in history if attempt.advice is not None]
        for made in self._proposals(task):
            if made.sha256 not in tried and made.schedule not in advised:
                return Advice(
                    bottleneck="not asked",
                    method=_METHOD,
                    plan=", ".join(f"{knob}={value}" for knob, value in made.schedule.items()),
                    predicted_gain=1.0,
                    schedule=dict(made.schedule),
                )
        return self.rules.advise(task, history)

    def _proposals(self, task: Task) -> list[Candidate]:
        if task.sha256 not in self._drawn:
            try:
                self._drawn[task.sha256] = self.policy.candidates(task, self.space(task), self.first)
            except (Untraceable, NothingToFuse):
                self._drawn[task.sha256] = []
        return self._drawn[task.sha256]
