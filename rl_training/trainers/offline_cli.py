"""`kernelwright train offline`: a policy learns from recorded replies."""

import json
from pathlib import Path

from rich.console import Console

from kernelwright.kernelbench.options import command
from kernelwright.rl_training.trainers.cli import checked
from kernelwright.rl_training.trainers.options import OfflineConfig


@command(OfflineConfig)
def offline(config: OfflineConfig) -> None:
    """Train a policy on recorded kernels, without generating any: RRHF or A-LoL.

    Writes DIR/policy, a model's folder, and all files that `kernelwright report DIR` shows. Give the same
    command again to resume after a kill.
    """
    from kernelwright.rl_training.rewards.scheme import scheme_of
    from kernelwright.rl_training.trainers.policy import LoraSettings, load_policy, quiet, require
    from kernelwright.rl_training.trainers.recorded import recorded

    options, source, updates = config.policy, config.data, config.updates
    scheme = scheme_of(source.reward)
    found = recorded(source.data, scheme)
    lora = LoraSettings(rank=options.lora_rank) if options.lora_rank is not None else None
    require(lora is not None)
    import torch
    from transformers import set_seed

    from kernelwright.rl_training.tracking.card import write_card
    from kernelwright.rl_training.tracking.environment import hashes
    from kernelwright.rl_training.tracking.metrics import MetricsFile, ProgressPrinter
    from kernelwright.rl_training.tracking.run import tracked
    from kernelwright.rl_training.tracking.trackers import reporting
    from kernelwright.rl_training.trainers import offline as learning
    from kernelwright.rl_training.trainers.precision import of_weights

    quiet()
    settings = checked(
        learning.OfflineSettings,
        model=options.model,
        method=source.method.value,
        reward=scheme,
        steps=updates.steps,
        learning_rate=updates.chosen_rate(config.policy.lora_rank is not None),
        batch=updates.batch_size,
        seed=updates.seed,
        lora=lora,
        precision=options.chosen_precision(),
        max_length=source.max_length,
        save_every=updates.save_every,
    )
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    set_seed(updates.seed)
    policy = load_policy(options.model, lora, of_weights(settings.precision))
    samples = learning.samples_of(policy, found.prompts, settings, device)
    inputs = found.hashes | hashes(sorted(Path(options.model).glob("*.safetensors")))
    out, seeds = config.output.out, {"training": updates.seed}
    with tracked(out, source.method.value, settings, seeds, inputs) as run:
        if run.checkpoint is not None:
            Console(stderr=True).print(f"Resuming from {run.checkpoint}.", markup=False, soft_wrap=True)
        callbacks = [MetricsFile(run.path), ProgressPrinter()]
        written = learning.train(
            policy,
            samples,
            settings,
            run.path,
            run.checkpoint,
            device,
            reporting(config.output.tracking, run.path),
            callbacks,
        )
    write_card(out, written)
    if config.output.as_json:
        told = {"schema": 1, "folder": str(out), "policy": str(written), "steps": updates.steps}
        print(json.dumps({**told, "replies": samples.replies, "too_long": samples.too_long}))
        return
    long = f"; {samples.too_long} were too long and left out" if samples.too_long else ""
    console = Console(highlight=False)
    console.print(f"{updates.steps} steps on {samples.replies} replies to {len(found.tasks)} tasks{long}.")
    console.print(f"Written to {written}; see `kernelwright report {out}`.", markup=False, soft_wrap=True)
