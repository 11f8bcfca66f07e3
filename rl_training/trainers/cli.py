"""`kernelwright train sft` and `kernelwright train rl`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError
from rich.console import Console

from kernelwright.kernelbench.cli import Json, TargetName
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.rl_training.tracking.trackers import Tracking
from kernelwright.rl_training.trainers.precision import Precision

if TYPE_CHECKING:
    from kernelwright.results.store.database import RunDatabase
    from kernelwright.rl_training.environment.task_data import TaskData
    from kernelwright.rl_training.exemplars import ExemplarStore

Model = Annotated[str, typer.Option(help="A model's folder, or its name on the Hugging Face Hub.")]
Out = Annotated[Path, typer.Option(help="Output folder; a run that is already there is resumed.")]
Steps = Annotated[int, typer.Option(help="Updates.", min=1)]
LearningRate = Annotated[float, typer.Option(help="The highest.")]
MicroBatch = Annotated[int, typer.Option(help="Sequences that a device computes at a time.", min=1)]
Seed = Annotated[int, typer.Option(help="Of the order, of what is sampled, of new adapters.", min=0)]
SaveEvery = Annotated[int, typer.Option(help="Steps from one checkpoint to the next.", min=1)]
LoraRank = Annotated[
    int | None, typer.Option(help="Train adapters of this rank instead of all weights.", min=1)
]
Optimizer = Annotated[
    str, typer.Option(help="Any of transformers': adamw_8bit, galore_adamw, apollo_adamw …")
]
DeepSpeed = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A DeepSpeed configuration: ZeRO, offload.")
]
Checkpointing = Annotated[
    bool, typer.Option("--gradient-checkpointing", help="Less memory, a third more time.")
]
PrecisionName = Annotated[
    Literal["float32", "bf16-mixed", "bf16"] | None,
    typer.Option(
        help="bf16-mixed: float32 weights, computing in bf16; bf16: float32 adapters on bf16 weights. "
        "Default: on a GPU these two, for all weights and for adapters; on a CPU float32.",
        show_default=False,
    ),
]
Track = Annotated[Tracking, typer.Option(help="Where else numbers go; metrics.jsonl always has them.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Train on the CPU even if a GPU is available.")]


def sft(
    model: Model,
    data: Annotated[Path, typer.Option(metavar="DIR", help="A data set of `train curate`.")],
    out: Out,
    steps: Steps = 500,
    learning_rate: LearningRate = 1e-5,
    batch_size: Annotated[int, typer.Option(help="Samples of an update.", min=1)] = 16,
    micro_batch: MicroBatch = 1,
    max_length: Annotated[
        int, typer.Option(help="Tokens of a prompt with its completion; longer ones are left out.", min=1)
    ] = 16384,
    reasoning: Annotated[
        Literal["think", "drop"] | None,
        typer.Option(
            help="Learn the reasoning before a completion, too, or leave it out. "
            "Default: think, where the chat template has a place for it.",
            show_default=False,
        ),
    ] = None,
    min_speedup: Annotated[
        float, typer.Option(help="Leave out samples whose speedup is not surely above it.", min=0)
    ] = 0.0,
    seed: Seed = 0,
    save_every: SaveEvery = 50,
    lora_rank: LoraRank = None,
    precision: PrecisionName = None,
    optimizer: Optimizer = "adamw_torch",
    deepspeed: DeepSpeed = None,
    gradient_checkpointing: Checkpointing = False,
    tracking: Track = Tracking.none,
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """Train a policy on the samples of a data set.

    Writes DIR/policy, a model's folder, and all files that `kernelwright report DIR` shows. Give the same
    command again to resume after a kill.
    """
    from kernelwright.rl_training.curation import parquet

    parquet.require()
    rows = _samples(data, min_speedup)
    _quiet()
    from transformers import set_seed

    from kernelwright.rl_training.tracking.environment import hashes
    from kernelwright.rl_training.tracking.metrics import MetricsFile, Progress
    from kernelwright.rl_training.tracking.run import tracked
    from kernelwright.rl_training.tracking.trackers import reporting
    from kernelwright.rl_training.trainers import supervised
    from kernelwright.rl_training.trainers.arguments import require_runnable
    from kernelwright.rl_training.trainers.policy import load_policy, load_tokenizer
    from kernelwright.rl_training.trainers.precision import of_weights
    from kernelwright.rl_training.trainers.settings import SftSettings

    if reasoning is None:
        reasoning = "think" if supervised.has_place_for_reasoning(load_tokenizer(model)) else "drop"
    settings = checked(
        SftSettings,
        **_common(
            model, steps, learning_rate, batch_size, micro_batch, seed, save_every, lora_rank, precision,
            optimizer, deepspeed, gradient_checkpointing, cpu,
        ),
        max_length=max_length, reasoning=reasoning, min_speedup=min_speedup,
    )  # fmt: skip
    set_seed(seed)
    require_runnable(settings)
    policy = load_policy(model, settings.lora, of_weights(settings.precision))
    inputs = hashes([data / "sft" / "train.parquet", *sorted(Path(model).glob("*.safetensors"))])
    with tracked(out, "sft", settings, {"training": seed}, inputs) as run:
        written = supervised.train(
            policy,
            rows,
            settings,
            run.path,
            [MetricsFile(run.path), Progress()],
            reporting(tracking, run.path),
        )
    reasoned = sum(bool(row.get("reasoning")) for row in rows)
    if reasoned and reasoning == "drop":
        Console(stderr=True).print(f"Reasoning was left out: {reasoned} of {len(rows)} samples have some.")
    _tell(out, written, steps, as_json)


def rl(
    model: Model,
    data: Annotated[
        list[str],
        typer.Option(metavar="DIR|RUN", help="Whose tasks: a data set of `train curate`, or runs."),
    ],
    out: Out,
    estimator: Annotated[
        Literal["grpo", "dr_grpo", "rloo", "remax"], typer.Option(help="How advantages are estimated.")
    ] = "dr_grpo",
    loss: Annotated[
        Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "gspo"], typer.Option(help="TRL's loss.")
    ] = "dr_grpo",
    reward: Annotated[
        str, typer.Option(metavar="SCHEME", help="A reward scheme's name, or its .toml or .json file.")
    ] = "log-speedup",
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Hold rewards against all before, clipped (CUDA-L1).")
    ] = False,
    turns: Annotated[int, typer.Option(min=1, help="Replies of a trajectory, each a sample of its own.")] = 1,
    exemplars: Annotated[
        int, typer.Option(min=0, help="Kernels with their speedups that a prompt shows (CUDA-L1: 2).")
    ] = 0,
    steps: Steps = 100,
    learning_rate: LearningRate = 2e-6,
    batch_size: Annotated[int, typer.Option(help="Replies of an update.", min=1)] = 64,
    group: Annotated[int, typer.Option(help="Replies to one task, all turns counted.", min=2)] = 16,
    micro_batch: MicroBatch = 1,
    temperature: Annotated[float, typer.Option(help="Of sampling.", min=0.01)] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Only the likeliest tokens that have this share.", min=0.01, max=1)
    ] = 1.0,
    max_completion: Annotated[int, typer.Option(help="Tokens of a reply.", min=1)] = 8192,
    kl: Annotated[float, typer.Option(help="Weight of the divergence from the first policy.", min=0)] = 0.0,
    entropy: Annotated[float, typer.Option(help="Weight of an entropy bonus.", min=0)] = 0.0,
    clip_low: Annotated[
        float | None,
        typer.Option(
            help="How far ratios of probabilities may be below 1. Default: 0.2; gspo 0.0003.",
            show_default=False,
        ),
    ] = None,
    clip_high: Annotated[
        float | None,
        typer.Option(
            help="How far above 1; of cispo the largest ratio. Default: 0.28; gspo 0.0004; cispo 5.",
            show_default=False,
        ),
    ] = None,
    updates_per_batch: Annotated[
        int, typer.Option(help="Updates with the same replies; ratios, and so clips, need two.", min=1)
    ] = 1,
    vllm: Annotated[Literal["none", "colocate", "server"], typer.Option(help="vLLM generates.")] = "none",
    restores: Annotated[
        int, typer.Option(help="After so many collapses, from the last good checkpoint.", min=0)
    ] = 2,
    target: TargetName = "cpu",
    seed: Seed = 0,
    save_every: SaveEvery = 10,
    lora_rank: LoraRank = None,
    precision: PrecisionName = None,
    optimizer: Optimizer = "adamw_torch",
    deepspeed: DeepSpeed = None,
    gradient_checkpointing: Checkpointing = False,
    tracking: Track = Tracking.none,
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """Train a policy with measured speedups as rewards: it writes kernels, the evaluator measures them.

    Writes DIR/policy, a model's folder, DIR/trajectories, and all files that `kernelwright report DIR` shows.
    Give the same command again to resume after a kill.
    """
    from kernelwright.agent.profiled import ProfilingPool
    from kernelwright.kernelbench.machine import cache_folder
    from kernelwright.rl_training.environment.grader import Grader
    from kernelwright.rl_training.rewards.hacks import HackMemory
    from kernelwright.rl_training.rewards.scheme import scheme_of

    scheme, tasks = scheme_of(reward), _tasks(data, seed, target)
    _quiet()
    from transformers import set_seed

    from kernelwright.rl_training.environment.environment import Environment
    from kernelwright.rl_training.tracking.environment import hashes
    from kernelwright.rl_training.tracking.metrics import MetricsFile, Progress
    from kernelwright.rl_training.tracking.run import tracked
    from kernelwright.rl_training.tracking.trackers import reporting
    from kernelwright.rl_training.trainers import online_run
    from kernelwright.rl_training.trainers.arguments import require_runnable
    from kernelwright.rl_training.trainers.policy import load_policy
    from kernelwright.rl_training.trainers.precision import of_weights
    from kernelwright.rl_training.trainers.settings import OnlineSettings

    settings = checked(
        OnlineSettings,
        **_common(
            model, steps, learning_rate, batch_size, micro_batch, seed, save_every, lora_rank, precision,
            optimizer, deepspeed, gradient_checkpointing, cpu,
        ),
        estimator=estimator, loss=loss, reward=scheme, smooth=smooth, turns=turns, contrastive=exemplars,
        group=group, temperature=temperature, top_p=top_p, max_completion=max_completion, kl=kl,
        entropy=entropy, clip_low=clip_low, clip_high=clip_high,
        updates_per_batch=updates_per_batch, vllm=vllm, restores=restores,
    )  # fmt: skip
    set_seed(seed)
    require_runnable(settings)
    load = lambda: load_policy(model, settings.lora, of_weights(settings.precision))  # noqa: E731
    load()  # what is wrong with it shows before an evaluator starts
    inputs = hashes(sorted(Path(model).glob("*.safetensors")))
    inputs |= {each.task.id: each.task.sha256 for each in tasks}
    with ExitStack() as stack:
        run = stack.enter_context(tracked(out, f"rl {estimator}", settings, {"training": seed}, inputs))
        evaluator = stack.enter_context(Referee.start(cache=cache_folder(), device=target))
        pool = stack.enter_context(ProfilingPool(evaluator))
        hacks = stack.enter_context(HackMemory(run.path / "hacks.db"))
        for known in _runs(data):
            hacks.learn(known)
        world = Grader(pool, scheme, hacks=hacks)
        done = online_run.train(
            load,
            lambda: Environment(
                {each.task.id: each for each in tasks}, world, turns, _exemplars(data, tasks), exemplars, seed
            ),
            tasks,
            settings,
            run.path,
            [MetricsFile(run.path), Progress()],
            reporting=reporting(tracking, run.path),
        )
    _tell(out, done.policy, done.steps, as_json, done.settled)


def _tasks(data: Sequence[str], seed: int, target: str) -> tuple["TaskData", ...]:
    from kernelwright.rl_training.tasks import tasks_from

    found = tasks_from(data, 0.0, seed)
    if found.device.partition(":")[0] != target.partition(":")[0]:
        raise UsageError(
            f"--target {target}: the tasks are for {found.device}, and prompts describe that",
            f"use --target {found.device}, or runs on {target}",
        )
    return found.train


def _runs(data: Sequence[str]) -> Iterator["RunDatabase"]:
    """Yield the sources that are runs, each open until the next."""
    from kernelwright.results.store.database import RunDatabase

    for source in data:
        if not (Path(source) / "tasks").is_dir():  # a data set
            with RunDatabase.open(source, read_only=True) as run:
                yield run


def _exemplars(data: Sequence[str], tasks: Sequence["TaskData"]) -> "ExemplarStore":
    """Collect the kernels of runs, and the winner of each task of a data set."""
    from kernelwright.rl_training.exemplars import ExemplarStore

    store = ExemplarStore()
    for task in tasks:
        store.begin(task)
    for known in _runs(data):
        store.learn(known)
    return store


def _samples(data: Path, min_speedup: float) -> list[dict[str, Any]]:
    from kernelwright.rl_training.curation import parquet

    path = data / "sft" / "train.parquet"
    if not path.is_file():
        raise UsageError(f"{data} holds no samples ({path})", "give a folder that `train curate` wrote")
    rows = [row for row in parquet.read(path) if row["speedup_low"] > min_speedup]
    tasks = len({row["task"] for row in rows})
    if tasks < 2:
        few = "only one task, which a policy would memorize" if tasks else "no task"
        above = f" with a speedup surely above {min_speedup:g}" if min_speedup else ""
        raise UsageError(f"{path} has samples{above} of {few}", "curate runs of several tasks")
    return rows


def _common(
    model: str, steps: int, learning_rate: float, batch: int, micro_batch: int, seed: int, save_every: int,
    lora_rank: int | None, precision: Precision | None, optimizer: str, deepspeed: Path | None,
    checkpointing: bool, cpu: bool,
) -> dict[str, Any]:  # fmt: skip
    from kernelwright.rl_training.trainers.precision import usual

    return {
        "model": model,
        "steps": steps,
        "learning_rate": learning_rate,
        "batch": batch,
        "micro_batch": min(micro_batch, batch),
        "seed": seed,
        "save_every": save_every,
        "lora": {"rank": lora_rank} if lora_rank is not None else None,
        "precision": precision if precision is not None else usual(lora_rank is not None, cpu),
        "optimizer": optimizer,
        "deepspeed": str(deepspeed) if deepspeed is not None else None,
        "gradient_checkpointing": checkpointing,
        "cpu": cpu,
    }


def checked(kind: Any, **values: Any) -> Any:
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = " ".join(f"--{str(part).replace('_', '-')}" for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{where}: {text}" if where else text, "see --help") from None


def _quiet() -> None:
    from kernelwright.rl_training.trainers.policy import quiet, require

    require()
    quiet()


def _tell(out: Path, written: Path, steps: int, as_json: bool, settled: str = "") -> None:
    if as_json:
        told = {"schema": 1, "folder": str(out), "policy": str(written), "steps": steps}
        print(json.dumps(told | ({"settled": settled} if settled else {})))
        return
    if settled:
        Console(highlight=False).print(
            f"Nothing was left to learn after step {steps}: {settled}.", soft_wrap=True
        )
    Console(highlight=False).print(
        f"Written to {written}; see `kernelwright report {out}`.", markup=False, soft_wrap=True
    )
