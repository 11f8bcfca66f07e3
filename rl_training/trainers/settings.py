"""Settings of a training: records stored in its manifest."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.functions import hash_of, is_function
from kernelwright.rl_training.rewards.scheme import SCHEMES, Scheme
from kernelwright.rl_training.trainers.advantages import ESTIMATORS
from kernelwright.rl_training.trainers.policy import LoraSettings
from kernelwright.rl_training.trainers.precision import Precision, require_learnable

Reasoning = Literal["think", "drop"]  # before a completion, or not at all
Loss = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "gspo"]

# Low and high of each loss, as its paper has them, for ratios of probabilities from 1 - low to 1 + high; None
# where it has no such bound. CISPO's is the largest ratio itself (arXiv:2506.13585).
_CLIP = (0.2, 0.28)  # DAPO, arXiv:2503.14476
_CLIPS: Mapping[str, tuple[float | None, float | None]] = {
    "gspo": (3e-4, 4e-4),  # of whole sequences, arXiv:2507.18071
    "cispo": (None, 5.0),
    "sapo": (None, None),  # a sigmoid instead
}


_OF_VLLM: Mapping[str, tuple[str, ...]] = {
    "colocate": ("vllm_memory", "vllm_tensor_parallel", "vllm_max_length", "vllm_sleep"),
    "server": ("vllm_url",),  # the rest is given to the server
}


class TrainingSettings(Record):
    """Settings of all trainers. `batch`: sequences that one update learns from."""

    model: str
    steps: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    batch: int = Field(default=16, gt=0)
    micro_batch: int = Field(default=16, gt=0)  # of these, that a device computes at a time
    seed: int = 0
    lora: LoraSettings | None = None
    precision: Precision = "float32"
    cpu: bool = False
    save_every: int = Field(default=10, gt=0)  # steps
    optimizer: str = "adamw_torch"  # any of transformers'
    deepspeed: str | None = None  # a DeepSpeed configuration (ZeRO, offload)
    gradient_checkpointing: bool = False
    max_grad_norm: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _divides(self) -> "TrainingSettings":
        if self.batch % self.micro_batch:
            raise ValueError(
                f"a batch of {self.batch} is not a multiple of micro-batches of {self.micro_batch}"
            )
        require_learnable(self.precision, self.lora is not None)
        return self


class SftSettings(TrainingSettings):
    max_length: int = Field(default=16384, gt=0)  # tokens; longer samples are left out
    reasoning: Reasoning = "drop"
    min_speedup: float = Field(default=0.0, ge=0)  # samples with no more were left out
    schedule: str = "cosine"
    warmup_share: float = Field(default=0.03, ge=0, lt=1)


class OnlineSettings(TrainingSettings):
    """Settings of online RL. `group`: samples of one prompt, all turns counted; a multiple of `turns`."""

    estimator: str = "dr_grpo"  # one of ESTIMATORS, or a function of the user's
    estimator_sha256: str = ""  # of the file that defines it
    best_of: int = Field(default=4, gt=0)  # k of max_at_k
    mask_truncated: bool = False  # replies that reach `max_completion` are not learned from
    loss: Loss = "dr_grpo"
    group: int = Field(default=8, gt=1)
    turns: int = Field(default=1, gt=0)
    reward: Scheme = SCHEMES["log-speedup"]
    smooth: bool = False  # rewards held against all before, clipped (CUDA-L1)
    contrastive: int = Field(default=0, ge=0)  # exemplars in a prompt
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)  # of nucleus sampling; 1.0 is none
    max_completion: int = Field(default=4096, gt=0)
    kl: float = Field(default=0.0, ge=0)  # the weight of the divergence from the first policy
    entropy: float = Field(default=0.0, ge=0)  # the weight of the bonus
    clip_low: float | None = Field(default=None, gt=0, lt=1)  # None: what the loss's paper has
    clip_high: float | None = Field(default=None, gt=0)
    updates_per_batch: int = Field(default=1, gt=0)  # that are made with the same replies
    redraws: int = Field(default=0, ge=0)  # of groups whose rewards are all equal (DAPO)
    generated_at_once: int | None = Field(default=None, gt=0)  # by a process; None: all of its batch
    vllm: Literal["none", "colocate", "server"] = "none"
    vllm_memory: float | None = Field(default=None, gt=0, le=1)  # share of a GPU's; None: TRL's
    vllm_tensor_parallel: int | None = Field(default=None, gt=0)  # GPUs that a copy of the model is on
    vllm_max_length: int | None = Field(default=None, gt=0)  # tokens of a prompt with its reply
    vllm_sleep: bool = False  # while the weights are updated
    vllm_url: str | None = None  # of a server
    restores: int = Field(default=2, ge=0)  # of the last good checkpoint, after a collapse

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, given: Any) -> Any:
        """Fill in the clip bounds of the loss, and the hash of a user's file: a manifest contains them."""
        if not isinstance(given, Mapping):
            return given
        found, loss = dict(given), given.get("loss", cls.model_fields["loss"].default)
        for name, usual in zip(("clip_low", "clip_high"), _CLIPS.get(loss, _CLIP), strict=True):
            if found.get(name) is None:
                found[name] = usual
            elif usual is None:
                raise ValueError(f"{name.replace('_', ' ')}: {loss} has no such bound; leave it out")
        estimator = found.get("estimator")
        if isinstance(estimator, str) and is_function(estimator) and not found.get("estimator_sha256"):
            found["estimator_sha256"] = hash_of(estimator)
        return found

    @field_validator("estimator")
    @classmethod
    def _known_estimator(cls, name: str) -> str:
        if name not in ESTIMATORS and not is_function(name):
            raise ValueError(
                f"unknown estimator '{name}'; use one of {', '.join(ESTIMATORS)}, or FILE.py:NAME"
            )
        return name

    @model_validator(mode="after")
    def _groups(self) -> "OnlineSettings":
        if self.group % self.turns:
            raise ValueError(f"a group of {self.group} is not a multiple of {self.turns} turns")
        if self.batch % self.group:
            raise ValueError(f"a batch of {self.batch} is not a multiple of groups of {self.group}")
        if self.estimator == "max_at_k" and self.group // self.turns <= self.best_of:
            raise ValueError(
                f"max_at_k takes the best of {self.best_of}, and needs a group of more than "
                f"{self.best_of * self.turns}"
            )
        if self.estimator == "remax" and self.group // self.turns < 2:
            raise ValueError("remax needs a greedy trajectory and at least one more in a group")
        if self.estimator == "remax" and self.vllm != "none":
            raise ValueError("remax's greedy replies come from transformers, not from vLLM")
        if self.redraws and self.estimator == "reinforce_plus_plus":
            raise ValueError(
                "redraws: reinforce_plus_plus learns from groups whose rewards are all equal, too; use "
                "reinforce_plus_plus_baseline, or leave them out"
            )
        if self.loss == "cispo" and self.clip_high is not None and self.clip_high < 1:
            raise ValueError(
                f"clip high: {self.clip_high:g} would cut every ratio: cispo's is the largest one itself; "
                "give more than 1, such as 5"
            )
        if self.save_every % self.updates_per_batch:
            raise ValueError(
                f"checkpoints every {self.save_every} steps would fall between the {self.updates_per_batch} "
                "updates of a batch; use a multiple of them"
            )
        return self

    @model_validator(mode="after")
    def _of_vllm(self) -> "OnlineSettings":
        for mode, names in _OF_VLLM.items():
            if self.vllm != mode and (given := [name for name in names if getattr(self, name)]):
                raise ValueError(
                    f"{given[0].replace('_', ' ')}: that is of vLLM in mode {mode}; use --vllm {mode}, or "
                    "leave it out"
                )
        return self
