"""What a training run is set to: records that its manifest keeps."""

from typing import Literal

from pydantic import Field, model_validator

from kernelbench.records import Record
from rl_training.rewards.scheme import SCHEMES, Scheme
from rl_training.trainers.advantages import Estimator
from rl_training.trainers.policy import LoraSettings

Loss = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "gspo"]


class TrainingSettings(Record):
    """Of all trainers. `batch`: sequences that one update learns from."""

    model: str
    steps: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    batch: int = Field(default=16, gt=0)
    micro_batch: int = Field(default=16, gt=0)  # of these, that a device computes at a time
    seed: int = 0
    lora: LoraSettings | None = None
    dtype: str = "float32"
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
        return self


class SftSettings(TrainingSettings):
    max_length: int = Field(default=16384, gt=0)  # tokens; longer samples are left out
    schedule: str = "cosine"
    warmup_share: float = Field(default=0.03, ge=0, lt=1)


class OnlineSettings(TrainingSettings):
    """`group`: samples of one prompt, all their turns counted; a multiple of `turns`."""

    estimator: Estimator = "dr_grpo"
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
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    vllm: Literal["none", "colocate", "server"] = "none"
    restores: int = Field(default=2, ge=0)  # of the last good checkpoint, after a collapse

    @model_validator(mode="after")
    def _groups(self) -> "OnlineSettings":
        if self.group % self.turns:
            raise ValueError(f"a group of {self.group} is not a multiple of {self.turns} turns")
        if self.batch % self.group:
            raise ValueError(f"a batch of {self.batch} is not a multiple of groups of {self.group}")
        if self.estimator == "remax" and self.group // self.turns < 2:
            raise ValueError("remax needs a greedy trajectory and at least one more in a group")
        if self.estimator == "remax" and self.vllm != "none":
            raise ValueError("remax's greedy replies come from transformers, not from vLLM")
        return self
