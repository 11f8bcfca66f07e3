"""Online RL: the policy writes kernels, the evaluator measures them, and the measurements update the policy.

TRL's GRPOTrainer with four additions: replies go through the `Grader`, in one turn or several, each turn a
sample with a complete prompt and its own credit; advantages are those of `trainers.advantages`; replies that
teach nothing are in no term of the loss and in none of its denominators; and the state of rewards and prompts
(the best so far, the exemplars, the running scale) is saved with the checkpoints.

All replies of a turn are submitted before the first verdict is awaited, each as soon as its part of them is
generated: the pool builds and verifies several at a time and times one after the other.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from trl import GRPOConfig, GRPOTrainer

from kernelwright.rl_training import trajectory
from kernelwright.rl_training.environment.completions import graded_text
from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.exemplars import ExemplarStore
from kernelwright.rl_training.rewards.remeasure import BestSoFar
from kernelwright.rl_training.rewards.smoothing import Running
from kernelwright.rl_training.tracking.step_metrics import StepClock, reply_metrics
from kernelwright.rl_training.trainers.advantages import Credited, advantages
from kernelwright.rl_training.trainers.checkpoints import WholeCheckpoints
from kernelwright.rl_training.trainers.processes import concatenated, from_first
from kernelwright.rl_training.trainers.settings import OnlineSettings
from kernelwright.rl_training.trainers.shared_rollouts import SampledReply, SharedRollouts
from kernelwright.rl_training.trajectory import Trajectory


@dataclass(frozen=True)
class _Generated:
    """Token ids of a prompt and completion, and its log-probabilities if vLLM generated it."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float] | None


@dataclass(frozen=True)
class _Sampled:
    """One turn in the trainer's form."""

    generated: _Generated
    credited: Credited
    masked: bool  # though it has a credit, which is part of its group's mean

    @property
    def teaches(self) -> bool:
        return self.credited.value is not None and not self.credited.greedy and not self.masked


class OnlineTrainer(WholeCheckpoints, GRPOTrainer):
    """Trainer of online RL.

    `rows`: a `datasets.Dataset` with `prompt`, `task` and `draw`, in the order of training; `environment`: in
    the first process, None in the others.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        rows: Any,
        environment: TrainingEnvironment | None,
        settings: OnlineSettings,
        args: GRPOConfig,
        callbacks: Sequence[Any] = (),
    ) -> None:
        self.environment = environment
        self.settings = settings
        self.running = Running()
        self._rows: list[dict[str, Any]] = []
        self._sampled: list[_Sampled] = []
        self._clock = StepClock()
        super().__init__(
            model=model,
            reward_funcs=[_credited],
            args=args,
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=[self._clock, *callbacks],
            rollout_func=self._rolled_out,
        )
        if self._dist.fsdp_version == 2:
            # generate() goes on in all processes until the last reply has ended if it knows of FSDP, which
            # accelerate does not tell it.
            for module in self.model.modules():
                if isinstance(module, PreTrainedModel):
                    module._is_fsdp_managed_module = True

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._rows = inputs
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        device = output["advantages"].device
        output["advantages"] = self._advantages(device)
        teaches = torch.tensor([sample.teaches for sample in self._sampled], device=device)
        output["completion_mask"] = output["completion_mask"] * teaches[:, None]
        gathered = self.accelerator.gather(torch.stack([output["completion_mask"].sum(), teaches.sum()]))
        output["num_items_in_batch"], everywhere = gathered.view(-1, 2).sum(0)
        output["teaching"] = everywhere / self.accelerator.num_processes
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Compute TRL's loss of the replies of a micro-batch that teach something.

        TRL divides by micro-batches, and in some losses by replies, whether these are masked or not. Here a
        micro-batch counts with its share of the replies that teach, so that the others change neither the
        direction of an update nor its size. Without any there is no gradient, and AdamW leaves the weights
        alone where it would continue by its momentum for a gradient of 0.
        """
        teaches = inputs["completion_mask"].any(-1)
        if not teaches.any():
            if self.accelerator.num_processes == 1 or inputs["teaching"] == 0:
                return torch.zeros((), device=teaches.device, requires_grad=True)
            teaches[:1] = True  # others wait for the gradient, which is 0 for a masked reply
            inputs = {**inputs, "completion_mask": inputs["completion_mask"] * 0}
        learned = inputs["completion_mask"].any(-1).sum()
        share = learned / inputs["teaching"] * self.current_gradient_accumulation_steps
        kept = {name: _of(held, teaches) for name, held in inputs.items()}
        kept["num_items_in_batch"] = inputs["num_items_in_batch"] * share  # of the whole batch already
        with _gathering_uneven(self.accelerator):
            loss: torch.Tensor = super()._compute_loss(model, kept)
        return loss * share

    def _advantages(self, device: torch.device) -> torch.Tensor:
        """Return the advantages of this process's samples, in float32; groups may span several processes."""
        table = torch.tensor(
            [
                [
                    math.nan if s.credited.value is None else s.credited.value,
                    s.credited.turn,
                    s.credited.greedy,
                ]
                for s in self._sampled
            ],
            device=device,
        )
        everywhere = self.accelerator.gather(table).tolist()
        turns = [
            Credited(
                None if math.isnan(value) else value, row // self.num_generations, int(turn), bool(greedy)
            )
            for row, (value, turn, greedy) in enumerate(everywhere)
        ]
        first = self.accelerator.process_index * len(self._sampled)
        found = advantages(turns, self.settings.estimator, self.settings.best_of)
        return torch.tensor(found[first : first + len(self._sampled)], device=device)

    def _rolled_out(self, prompts: Sequence[Any], _: Any) -> dict[str, Any]:
        """Run the rollouts, as TRL's rollout function: a row per prompt, which is a turn."""
        turns = self.settings.turns
        rows = self._rows[::turns]
        asked = [(row["task"], row["draw"]) for row in rows]
        rollouts = SharedRollouts(self.environment, asked, self.num_generations // turns)
        first_of_group = self.accelerator.process_index * len(prompts)
        greedy = [
            self.settings.estimator == "remax" and (first_of_group + i) % self.num_generations == 0
            for i in range(0, len(prompts), turns)
        ]
        generated: list[list[_Generated]] = [[] for _ in rows]
        for attempt in range(1 + self.settings.redraws):
            if attempt:
                for place in rollouts.replace_alike():
                    generated[place] = []
            for _ in range(turns):
                self._take_turn(rollouts, greedy, generated)
        rewards, measured = from_first(lambda: self._keep(rollouts.trajectories(), rollouts.replaced()))
        # Only now: all replies of a step are held against one scale, or equal ones would be paid unequally.
        self.running = self.running.having_seen([reward for earned in rewards for reward in earned])
        self._sampled = [
            sample
            for earned, ids, is_greedy in zip(rewards[rollouts.own], generated, greedy, strict=True)
            for sample in self._samples(earned, ids, is_greedy)
        ]
        for metric, value in measured.items():
            self._metrics["train"][metric].append(value)
        given = [sample.generated for sample in self._sampled]
        return {
            "prompt_ids": [each.prompt for each in given],
            "completion_ids": [each.completion for each in given],
            "logprobs": [each.logprobs for each in given] if self.use_vllm else None,
            "credited": [sample.credited.value for sample in self._sampled],
        }

    def _take_turn(
        self, rollouts: SharedRollouts, greedy: Sequence[bool], generated: Sequence[list[_Generated]]
    ) -> None:
        asked = rollouts.prompts()
        going = [i for i, messages in enumerate(asked) if messages is not None]
        prompts, _, _ = self._tokenize_prompts([asked[i] for i in going]) if going else ([], None, None)
        most = max(concatenated([len(going)]))
        at_once = self.settings.generated_at_once or max(1, most)
        for first in range(0, most, at_once):
            part = slice(first, first + at_once)
            with self._clock.measured("generate"):
                made = self._completed(prompts[part], [greedy[i] for i in going[part]])
            replies = {}
            for i, each in zip(going[part], made, strict=True):
                generated[i].append(each)
                replies[i] = self._reply(each)
            rollouts.submit(replies)
        with self._clock.measured("wait"):
            rollouts.settle()

    def _reply(self, generated: _Generated) -> SampledReply:
        ids = generated.completion
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        return SampledReply(text, graded_text(self._tokenizer, generated.prompt, ids))

    def _completed(self, prompts: Sequence[Sequence[int]], greedy: Sequence[bool]) -> list[_Generated]:
        found: dict[int, _Generated] = {}
        sampling = None if self.use_vllm else self.generation_config
        for decoded_greedily in (False, True):
            if decoded_greedily and self.settings.estimator != "remax":
                continue
            places = [i for i, chosen in enumerate(greedy) if chosen == decoded_greedily]
            if decoded_greedily:
                assert sampling is not None, "settings refuse remax with vLLM"
                sampling.do_sample = False
            try:
                asked = [list(prompts[i]) for i in places]
                completions, logprobs = self._generate_together(asked)
            finally:
                if sampling is not None:
                    sampling.do_sample = True
            said = logprobs if logprobs is not None else [None] * len(places)
            found |= {
                place: _Generated(prompt, list(completion), each)
                for place, prompt, completion, each in zip(places, asked, completions, said, strict=True)
            }
        return [found[i] for i in range(len(prompts))]

    def _generate_together(
        self, prompts: list[list[int]]
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """Generate a completion of each prompt, in all processes together.

        Sharded weights and vLLM want every process to ask at a time, and for as many.
        """
        count, most = len(prompts), max(concatenated([len(prompts)]))
        if most == 0:
            return [], None
        asked = prompts + [[self._tokenizer.pad_token_id]] * (most - count)
        completions, logprobs = self._generate_single_turn(asked, None, {}, 1)
        return completions[:count], logprobs[:count] if logprobs is not None else None

    def _samples(
        self, rewards: Sequence[float | None], generated: Sequence[_Generated], greedy: bool
    ) -> list[_Sampled]:
        """Return a sample per turn; if it ended early, copies of its last one that teach nothing."""
        if self.settings.smooth:
            rewards = self.running.smoothed(rewards)
        returns = self.settings.reward.returns(rewards)
        samples = [
            _Sampled(each, Credited(value, 0, turn, greedy), self._is_masked(each))
            for turn, (value, each) in enumerate(zip(returns, generated, strict=True))
        ]
        for turn in range(len(samples), self.settings.turns):
            samples.append(_Sampled(generated[-1], Credited(None, 0, turn, greedy), masked=True))
        return samples

    def _is_masked(self, reply: _Generated) -> bool:
        """Return True for a reply that was cut off, where those are not learned from (DAPO)."""
        if not self.settings.mask_truncated or len(reply.completion) < self.settings.max_completion:
            return False
        return reply.completion[-1] != self._tokenizer.eos_token_id

    def _keep(
        self, trajectories: Sequence[Trajectory], replaced: Sequence[Trajectory]
    ) -> tuple[list[Sequence[float | None]], dict[str, float]]:
        """Record trajectories, in the first process: in the run's folder, a file per step; as exemplars.

        Returns the rewards of each but the replaced ones, and the step's metrics.
        """
        assert self.environment is not None
        everything = [*trajectories, *replaced]
        for made in everything:
            for turn in made.turns:
                self.environment.exemplars.see(self.environment.tasks[made.task], turn)
        name = f"step-{self.state.global_step + 1:06}-0.jsonl"
        trajectory.write(Path(self.args.output_dir) / "trajectories" / name, everything)
        families = {made.task: self.environment.tasks[made.task].family for made in everything}
        found = reply_metrics(everything, families)
        if self.settings.redraws:
            found["redrawn_fraction"] = len(replaced) / len(everything)
        return [made.rewards for made in trajectories], found

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log({**logs, **self._clock.taken()}, start_time)

    def save_with(self, checkpoint: Path) -> None:
        assert self.environment is not None
        self.running.save(checkpoint / "running.json")
        self.environment.grader.best.save(checkpoint / "best.json")
        self.environment.exemplars.save(checkpoint / "exemplars.json")

    def load_from(self, checkpoint: Path) -> None:
        """Restore the state of rewards and prompts. Raises StorageError."""
        self.running = Running.load(checkpoint / "running.json")
        if self.environment is None:
            return
        self.environment.grader.best = BestSoFar.load(checkpoint / "best.json")
        self.environment.exemplars = ExemplarStore.load(checkpoint / "exemplars.json")


def _credited(
    prompts: Any, completions: Any, credited: Sequence[float | None], **_: Any
) -> list[float | None]:
    """Return the credits that the rollouts have already computed, as TRL's reward function."""
    return list(credited)


@contextlib.contextmanager
def _gathering_uneven(accelerator: Any) -> Iterator[None]:
    """Gather tensors of different lengths, as metrics of replies are; NaN in place of what is missing."""
    gather = accelerator.gather

    def padded(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim:
            tensor = accelerator.pad_across_processes(tensor, pad_index=math.nan)
        gathered: torch.Tensor = gather(tensor)
        return gathered

    accelerator.gather = padded
    try:
        yield
    finally:
        del accelerator.gather


def _of(held: Any, rows: torch.Tensor) -> Any:
    """Select rows of tensors with a row for each reply; return anything else unchanged."""
    return held[rows] if isinstance(held, torch.Tensor) and held.ndim else held
