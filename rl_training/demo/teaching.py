"""SFT of the embedded policies, each in a process with one thread, which is enough for a small model."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from kernelwright.kernelbench.machine import physical_threads
from kernelwright.kernelbench.records import Target
from kernelwright.rl_training.demo.data import samples, tasks_of
from kernelwright.rl_training.demo.policy import begin
from kernelwright.rl_training.demo.settings import DemoSettings
from kernelwright.rl_training.trainers.checkpoints import POLICY
from kernelwright.rl_training.trainers.settings import SftSettings

BEGUN, SFT = "begun", "sft"  # folders of a seed: the policy before it, and the training


def teach(
    folders: dict[int, Path], settings: DemoSettings, demo: Path, target: Target, say: Callable[[str], None]
) -> None:
    """Train the policy of each seed, unless it is done. `demo`: the folder with the tasks."""
    left = [seed for seed, folder in folders.items() if not (folder / SFT / POLICY).exists()]
    if not left:
        return
    say(f"SFT of seeds {', '.join(map(str, left))}: some minutes; `kernelwright report` shows progress")
    # Imported again in each process, for torch's threads do not outlive a fork. More processes than cores, or
    # three seeds on two cores would be two rounds.
    most = min(len(left), 2 * physical_threads())
    with ProcessPoolExecutor(most, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(_taught, seed, folders[seed], settings, demo, target): seed for seed in left}
        for done in as_completed(jobs):
            done.result()
            say(f"seed {jobs[done]}: SFT is done")


def _taught(seed: int, folder: Path, settings: DemoSettings, demo: Path, target: Target) -> None:
    from kernelwright.kernelbench.evaluator.sandbox.layers import die_with_parent

    die_with_parent()
    import torch

    from kernelwright.rl_training.tracking.metrics import MetricsFile
    from kernelwright.rl_training.tracking.run import tracked
    from kernelwright.rl_training.trainers import supervised
    from kernelwright.rl_training.trainers.policy import load_policy, quiet

    torch.set_num_threads(1)
    quiet()
    rows = samples(tasks_of(settings, demo).known, target)
    begin(rows, settings, seed, folder / BEGUN)
    chosen = SftSettings(
        model=str(folder / BEGUN),
        steps=settings.sft_steps,
        learning_rate=settings.sft_rate,
        batch=settings.sft_batch,
        micro_batch=settings.sft_batch,
        seed=seed,
        cpu=True,
        save_every=100,
        max_length=settings.longest,
    )
    command = f"kernelwright train demo, SFT of seed {seed}"
    with tracked(folder / SFT, "sft", chosen, {"seed": seed}, {}, command) as training:
        policy = load_policy(chosen.model)
        supervised.train(policy, rows, chosen, training.path, [MetricsFile(training.path)])
