"""Options of `kernelwright train sft`, `train rl` and `train offline`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer
from pydantic import Field

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.options import Section
from kernelwright.rl_training.environment.place import RewardPlaceOptions
from kernelwright.rl_training.tracking.trackers import Tracking
from kernelwright.rl_training.trainers.precision import Precision, usual

Steps = Annotated[int, Field(ge=1), typer.Option(help="Number of updates.")]
BatchSize = Annotated[int, Field(ge=1), typer.Option(help="Samples for each update.")]
SaveEvery = Annotated[int, Field(ge=1), typer.Option(help="Steps between checkpoints.")]
MaxLength = Annotated[
    int, Field(ge=1), typer.Option(help="Tokens of a prompt with its reply; longer ones are left out.")
]
Reward = Annotated[
    str,
    typer.Option(
        metavar="SCHEME",
        help="Reward scheme: a name, a .toml or .json file, or a function as FILE.py:NAME.",
    ),
]
Sources = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    typer.Option(metavar="DIR|RUN", help="Data set of `train curate`, or a run; repeatable."),
]


class Method(StrEnum):
    rrhf = "rrhf"
    a_lol = "a-lol"
    a_lol_seq = "a-lol-seq"
    a_lol_ref_free = "a-lol-ref-free"
    a_lol_kl = "a-lol-kl"


class PolicyOptions(Section):
    """Policy to train, and the form in which it fits into memory."""

    model: Annotated[str, typer.Option(help="Folder of a model, or its name on the Hugging Face Hub.")]
    lora_rank: Annotated[
        int | None, Field(ge=1), typer.Option(help="Train adapters of this rank instead of all weights.")
    ] = None
    precision: Annotated[
        Precision | None,
        typer.Option(
            help="Precision: float32, bf16-mixed (float32 weights, computing in bf16) or bf16 (float32 "
            "adapters on bf16 weights).",
            show_default="bf16-mixed on a GPU, bf16 for adapters, float32 on a CPU",
        ),
    ] = None
    cpu: Annotated[bool, typer.Option("--cpu", help="Train on the CPU even if there is a GPU.")] = False

    def chosen_precision(self) -> Precision:
        return self.precision or usual(self.lora_rank is not None, self.cpu)


class TrainedPolicyOptions(PolicyOptions):
    deepspeed: Annotated[
        Path | None, typer.Option(metavar="FILE", help="DeepSpeed configuration: ZeRO, offload.")
    ] = None
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Use less memory, for a third more time.")
    ] = False


class UpdateOptions(Section):
    """Updates of the weights."""

    # Of all weights, and of adapters: ten times as much, at any rank ("LoRA Without Regret", 2025,
    # https://thinkingmachines.ai/blog/lora).
    usual_rates: ClassVar[tuple[float, float]] = (1e-5, 1e-4)

    steps: Steps = 100
    learning_rate: Annotated[
        float | None,
        Field(gt=0),
        typer.Option(help="Highest learning rate.", show_default="1e-5; 1e-4 for adapters"),
    ] = None
    batch_size: BatchSize = 16
    seed: Annotated[
        int, Field(ge=0), typer.Option(help="Seed of the order, of sampling and of new adapters.")
    ] = 0
    save_every: SaveEvery = 10

    def chosen_rate(self, adapters: bool) -> float:
        return self.learning_rate or self.usual_rates[adapters]


class TrainedUpdateOptions(UpdateOptions):
    micro_batch: Annotated[
        int, Field(ge=1), typer.Option(help="Sequences that a device computes at a time.")
    ] = 1
    optimizer: Annotated[
        str, typer.Option(help="Optimizer of transformers, such as adamw_8bit or galore_adamw.")
    ] = "adamw_torch"


class TrainOutputOptions(Section):
    """Destination of results."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder; a run in it is resumed.")]
    tracking: Annotated[Tracking, typer.Option(help="Where numbers go beside metrics.jsonl.")] = Tracking.none
    as_json: Json = False


class SftUpdateOptions(TrainedUpdateOptions):
    steps: Steps = 500
    save_every: SaveEvery = 50


class SampleOptions(Section):
    """Samples to learn from."""

    data: Annotated[Path, typer.Option(metavar="DIR", help="Data set of `train curate`.")]
    max_length: MaxLength = 16384
    reasoning: Annotated[
        Literal["think", "drop"] | None,
        typer.Option(
            help="Learn the reasoning before a completion, or leave it out.",
            show_default="think, if the chat template has a place for it",
        ),
    ] = None
    min_speedup: Annotated[
        float, Field(ge=0), typer.Option(help="Leave out samples whose speedup is not surely above it.")
    ] = 0.0


class SftConfig(Section):
    policy: TrainedPolicyOptions
    data: SampleOptions
    updates: SftUpdateOptions = SftUpdateOptions()
    output: TrainOutputOptions


class RlUpdateOptions(TrainedUpdateOptions):
    usual_rates: ClassVar[tuple[float, float]] = (2e-6, 2e-5)

    learning_rate: Annotated[
        float | None,
        Field(gt=0),
        typer.Option(help="Highest learning rate.", show_default="2e-6; 2e-5 for adapters"),
    ] = None
    batch_size: BatchSize = 64
    updates_per_batch: Annotated[
        int, Field(ge=1), typer.Option(help="Updates with the same replies; clips need two.")
    ] = 1
    restores: Annotated[
        int, Field(ge=0), typer.Option(help="Restores of the last good checkpoint after a collapse.")
    ] = 2


class AlgorithmOptions(Section):
    """Advantages, rewards and the loss."""

    estimator: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Estimator of advantages: grpo, dr_grpo, rloo, remax, reinforce_plus_plus, "
            "reinforce_plus_plus_baseline, max_at_k, or a function as FILE.py:NAME.",
        ),
    ] = "dr_grpo"
    best_of: Annotated[
        int, Field(ge=1), typer.Option("--k", help="Replies of which max_at_k takes the best.")
    ] = 4
    loss: Annotated[
        Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "gspo"],
        typer.Option(help="Loss, as TRL names it."),
    ] = "dr_grpo"
    reward: Reward = "log-speedup"
    mask_truncated: Annotated[
        bool,
        typer.Option("--mask-truncated", help="Learn nothing from replies that reach --max-completion."),
    ] = False
    redraws: Annotated[
        int,
        Field(ge=0),
        typer.Option(help="Draws of another task for a group whose rewards are all equal (DAPO)."),
    ] = 0
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Normalize by all rewards before, clipped (CUDA-L1).")
    ] = False
    kl: Annotated[
        float, Field(ge=0), typer.Option(help="Weight of the divergence from the first policy.")
    ] = 0.0
    entropy: Annotated[float, Field(ge=0), typer.Option(help="Weight of an entropy bonus.")] = 0.0
    clip_low: Annotated[
        float | None,
        typer.Option(
            help="Distance below 1 that probability ratios may have.", show_default="0.2; gspo 0.0003"
        ),
    ] = None
    clip_high: Annotated[
        float | None,
        typer.Option(
            help="Distance above 1 that they may have; of cispo the largest ratio.",
            show_default="0.28; gspo 0.0004; cispo 5",
        ),
    ] = None


class RolloutOptions(Section):
    """Replies of the policy to tasks."""

    data: Sources
    group: Annotated[int, Field(ge=2), typer.Option(help="Replies to one task, all turns counted.")] = 16
    turns: Annotated[
        int, Field(ge=1), typer.Option(help="Replies of a trajectory, each a sample of its own.")
    ] = 1
    exemplars: Annotated[
        int, Field(ge=0), typer.Option(help="Kernels with their speedups in a prompt (CUDA-L1: 2).")
    ] = 0
    temperature: Annotated[float, Field(ge=0.01), typer.Option(help="Temperature of sampling.")] = 1.0
    top_p: Annotated[
        float, Field(ge=0.01, le=1), typer.Option(help="Share of the likeliest tokens to sample from.")
    ] = 1.0
    max_completion: Annotated[int, Field(ge=1), typer.Option(help="Tokens of a reply.")] = 8192
    generate_at_once: Annotated[
        int | None,
        Field(ge=1),
        typer.Option(
            metavar="N",
            help="Replies that a process generates at a time; they are evaluated while it generates others.",
            show_default="all",
        ),
    ] = None
    vllm: Annotated[Literal["none", "colocate", "server"], typer.Option(help="Use of vLLM to generate.")] = (
        "none"
    )
    vllm_memory: Annotated[
        float | None,
        Field(gt=0, le=1),
        typer.Option(help="Share of a GPU's memory for vLLM beside the training.", show_default="0.3"),
    ] = None
    vllm_tensor_parallel: Annotated[
        int | None,
        Field(ge=1),
        typer.Option(help="GPUs that vLLM spreads a copy of the policy over.", show_default="1"),
    ] = None
    vllm_max_length: Annotated[
        int | None,
        Field(ge=1),
        typer.Option(help="Tokens of a prompt with its reply in vLLM.", show_default="the model's"),
    ] = None
    vllm_sleep: Annotated[
        bool, typer.Option("--vllm-sleep", help="Release vLLM's memory while weights are updated.")
    ] = False
    vllm_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address of `trl vllm-serve`.", show_default="port 8000, here"),
    ] = None


class HeldOutOptions(Section):
    """Evaluation on held-out tasks while training goes on."""

    evaluate_every: Annotated[
        int | None,
        Field(ge=1),
        typer.Option(metavar="N", help="Steps between evaluations.", show_default="none"),
    ] = None
    evaluate_samples: Annotated[int, Field(ge=1), typer.Option(help="Replies to each task there.")] = 4


class RlConfig(Section):
    policy: TrainedPolicyOptions
    rollouts: RolloutOptions
    evaluation: RewardPlaceOptions = RewardPlaceOptions()
    held_out: HeldOutOptions = HeldOutOptions()
    algorithm: AlgorithmOptions = AlgorithmOptions()
    updates: RlUpdateOptions = RlUpdateOptions()
    output: TrainOutputOptions


class OfflineUpdateOptions(UpdateOptions):
    batch_size: Annotated[
        int,
        Field(ge=1),
        typer.Option(help="For each update: prompts with all replies (rrhf), or replies."),
    ] = 4


class RecordedOptions(Section):
    """Recorded replies to learn from."""

    data: Sources
    method: Annotated[Method, typer.Option(help="Method of learning.")] = Method.rrhf
    reward: Reward = "log-speedup"
    max_length: MaxLength = 16384


class OfflineConfig(Section):
    policy: PolicyOptions
    data: RecordedOptions
    updates: OfflineUpdateOptions = OfflineUpdateOptions()
    output: TrainOutputOptions


def settings_in_common(policy: TrainedPolicyOptions, updates: TrainedUpdateOptions) -> dict[str, Any]:
    """Fields of TrainingSettings, by name."""
    return {
        "model": policy.model,
        "steps": updates.steps,
        "learning_rate": updates.chosen_rate(policy.lora_rank is not None),
        "batch": updates.batch_size,
        "micro_batch": min(updates.micro_batch, updates.batch_size),
        "seed": updates.seed,
        "save_every": updates.save_every,
        "lora": {"rank": policy.lora_rank} if policy.lora_rank is not None else None,
        "precision": policy.chosen_precision(),
        "optimizer": updates.optimizer,
        "deepspeed": str(policy.deepspeed) if policy.deepspeed is not None else None,
        "gradient_checkpointing": policy.gradient_checkpointing,
        "cpu": policy.cpu,
    }
