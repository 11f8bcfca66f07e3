"""`kernelwright train offline`: a policy learns from recorded replies."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.errors import UsageError
from kernelwright.rl_training.tracking.trackers import Tracking
from kernelwright.rl_training.trainers.cli import PrecisionName, checked


class Method(StrEnum):
    rrhf = "rrhf"
    a_lol = "a-lol"
    a_lol_seq = "a-lol-seq"
    a_lol_ref_free = "a-lol-ref-free"
    a_lol_kl = "a-lol-kl"


def offline(
    model: Annotated[str, typer.Option(help="A model's folder, or its name on the Hugging Face Hub.")],
    data: Annotated[
        list[str],
        typer.Option(
            metavar="DIR|RUN", help="A data set of `train curate`, or a run of a model; may be given again."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output folder; a run that is already there is resumed.")],
    method: Annotated[Method, typer.Option(help="What to learn by.")] = Method.rrhf,
    reward: Annotated[
        str, typer.Option(help="What turns of runs earn: a scheme's name or file. Data sets have scores.")
    ] = "log-speedup",
    steps: Annotated[int, typer.Option(help="Updates.", min=1)] = 100,
    learning_rate: Annotated[float, typer.Option(help="Constant, of AdamW.")] = 1e-5,
    batch_size: Annotated[
        int, typer.Option(help="For an update: prompts with all replies (rrhf), or replies.", min=1)
    ] = 4,
    max_length: Annotated[
        int, typer.Option(help="Tokens of a prompt with its reply; longer ones are left out.", min=1)
    ] = 16384,
    seed: Annotated[int, typer.Option(help="Of the order, and of new adapters.", min=0)] = 0,
    save_every: Annotated[int, typer.Option(help="Steps from one checkpoint to the next.", min=1)] = 10,
    lora_rank: Annotated[
        int | None, typer.Option(help="Train adapters of this rank instead of all weights.", min=1)
    ] = None,
    precision: PrecisionName = None,
    tracking: Annotated[
        Tracking, typer.Option(help="Where else numbers go; metrics.jsonl always has them.")
    ] = Tracking.none,
    cpu: Annotated[bool, typer.Option("--cpu", help="Train on the CPU even if a GPU is available.")] = False,
    as_json: Json = False,
) -> None:
    """Train a policy on recorded kernels, without generating any: RRHF or A-LoL.

    Writes DIR/policy, a model's folder, and all files that `kernelwright report DIR` shows. Give the same
    command again to resume after a kill.
    """
    if learning_rate <= 0:
        raise UsageError(f"invalid --learning-rate {learning_rate:g}", "use a number above 0")
    from kernelwright.rl_training.rewards.scheme import scheme_of
    from kernelwright.rl_training.trainers.policy import LoraSettings, load_policy, quiet, require
    from kernelwright.rl_training.trainers.recorded import recorded

    scheme, found = scheme_of(reward), recorded(data, scheme_of(reward))
    lora = LoraSettings(rank=lora_rank) if lora_rank is not None else None
    require(lora is not None)
    import torch
    from transformers import set_seed

    from kernelwright.rl_training.tracking.environment import hashes
    from kernelwright.rl_training.tracking.metrics import MetricsFile, Progress
    from kernelwright.rl_training.tracking.run import tracked
    from kernelwright.rl_training.tracking.trackers import reporting
    from kernelwright.rl_training.trainers import offline as learning
    from kernelwright.rl_training.trainers.precision import of_weights, usual

    quiet()
    settings = checked(
        learning.OfflineSettings,
        model=model,
        method=method.value,
        reward=scheme,
        steps=steps,
        learning_rate=learning_rate,
        batch=batch_size,
        seed=seed,
        lora=lora,
        precision=precision if precision is not None else usual(lora is not None, cpu),
        max_length=max_length,
        save_every=save_every,
    )
    device = "cuda" if torch.cuda.is_available() and not cpu else "cpu"
    set_seed(seed)
    policy = load_policy(model, lora, of_weights(settings.precision))
    samples = learning.samples_of(policy, found.prompts, settings, device)
    inputs = found.hashes | hashes(sorted(Path(model).glob("*.safetensors")))
    with tracked(out, method.value, settings, {"training": seed}, inputs) as run:
        if run.checkpoint is not None:
            Console(stderr=True).print(f"Resuming from {run.checkpoint}.", markup=False, soft_wrap=True)
        callbacks = [MetricsFile(run.path), Progress()]
        written = learning.train(
            policy,
            samples,
            settings,
            run.path,
            run.checkpoint,
            device,
            reporting(tracking, run.path),
            callbacks,
        )
    if as_json:
        told = {"schema": 1, "folder": str(out), "policy": str(written), "steps": steps}
        print(json.dumps({**told, "replies": samples.replies, "too_long": samples.too_long}))
        return
    long = f"; {samples.too_long} were too long and left out" if samples.too_long else ""
    console = Console(highlight=False)
    console.print(f"{steps} steps on {samples.replies} replies to {len(found.tasks)} tasks{long}.")
    console.print(f"Written to {written}; see `kernelwright report {out}`.", markup=False, soft_wrap=True)
