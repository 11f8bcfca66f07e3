"""`kernelwright train sft` and `kernelwright train rl`."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from rich.console import Console

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.options import command
from kernelwright.rl_training.trainers.options import (
    RlConfig,
    SftConfig,
    TrainOutputOptions,
    settings_in_common,
)
from kernelwright.rl_training.trainers.processes import is_first

if TYPE_CHECKING:
    from kernelwright.results.store.database import RunDatabase
    from kernelwright.rl_training.environment.task_data import TaskData
    from kernelwright.rl_training.exemplars import ExemplarStore
    from kernelwright.rl_training.tasks import Tasks


@command(SftConfig)
def sft(config: SftConfig) -> None:
    """Train a policy on the samples of a data set.

    Writes DIR/policy, a model's folder, and all files that `kernelwright report DIR` shows. Give the same
    command again to resume after a kill.
    """
    from kernelwright.rl_training.curation import parquet

    seed, data = config.updates.seed, config.data.data
    parquet.require()
    rows = _samples(data, config.data.min_speedup)
    _quiet()
    from transformers import set_seed

    from kernelwright.rl_training.tracking.environment import hashes
    from kernelwright.rl_training.tracking.metrics import MetricsFile, ProgressPrinter
    from kernelwright.rl_training.tracking.run import tracked
    from kernelwright.rl_training.tracking.trackers import reporting
    from kernelwright.rl_training.trainers import supervised
    from kernelwright.rl_training.trainers.arguments import require_runnable
    from kernelwright.rl_training.trainers.policy import load_policy, load_tokenizer
    from kernelwright.rl_training.trainers.precision import of_weights
    from kernelwright.rl_training.trainers.settings import SftSettings

    model, reasoning = config.policy.model, config.data.reasoning
    if reasoning is None:
        reasoning = "think" if supervised.has_place_for_reasoning(load_tokenizer(model)) else "drop"
    settings = checked(
        SftSettings,
        **settings_in_common(config.policy, config.updates),
        max_length=config.data.max_length,
        reasoning=reasoning,
        min_speedup=config.data.min_speedup,
    )
    set_seed(seed)
    require_runnable(settings)
    policy, out = load_policy(model, settings.lora, of_weights(settings.precision)), config.output.out
    with ExitStack() as stack:
        if is_first():
            inputs = hashes([data / "sft" / "train.parquet", *sorted(Path(model).glob("*.safetensors"))])
            stack.enter_context(tracked(out, "sft", settings, {"training": seed}, inputs))
        written = supervised.train(
            policy,
            rows,
            settings,
            out,
            [MetricsFile(out), ProgressPrinter()],
            reporting(config.output.tracking, out),
        )
    if not is_first():
        return
    reasoned = sum(bool(row.get("reasoning")) for row in rows)
    if reasoned and reasoning == "drop":
        Console(stderr=True).print(f"Reasoning was left out: {reasoned} of {len(rows)} samples have some.")
    _tell(config.output, written, config.updates.steps)


@command(RlConfig)
def rl(config: RlConfig) -> None:
    """Train a policy with measured speedups as rewards: it writes kernels, the evaluator measures them.

    Writes DIR/policy, a model's folder, DIR/trajectories, and all files that `kernelwright report DIR` shows.
    Give the same command again to resume after a kill.
    """
    from kernelwright.agent.profiled import ProfilingPool
    from kernelwright.rl_training.environment.grader import Grader
    from kernelwright.rl_training.rewards.hacks import HackMemory
    from kernelwright.rl_training.rewards.scheme import scheme_of
    from kernelwright.rl_training.tasks import tasks_of_device

    rollouts, algorithm, updates = config.rollouts, config.algorithm, config.updates
    seed, data = updates.seed, rollouts.data
    place = config.evaluation.resolved()
    scheme, given = scheme_of(algorithm.reward), tasks_of_device(data, seed, place.device)
    tasks = given.train
    _check_held_out(config, given)
    _quiet()
    from transformers import set_seed

    from kernelwright.rl_training.environment.environment import TrainingEnvironment
    from kernelwright.rl_training.evaluation.during_training import HeldOutEvaluation
    from kernelwright.rl_training.evaluation.sampling import SamplingSettings
    from kernelwright.rl_training.tracking.environment import hashes
    from kernelwright.rl_training.tracking.metrics import MetricsFile, ProgressPrinter
    from kernelwright.rl_training.tracking.run import tracked
    from kernelwright.rl_training.tracking.trackers import reporting
    from kernelwright.rl_training.trainers import online_run
    from kernelwright.rl_training.trainers.arguments import require_runnable
    from kernelwright.rl_training.trainers.policy import load_policy, load_tokenizer
    from kernelwright.rl_training.trainers.precision import of_weights
    from kernelwright.rl_training.trainers.settings import OnlineSettings

    settings = checked(
        OnlineSettings,
        **settings_in_common(config.policy, updates),
        estimator=algorithm.estimator,
        best_of=algorithm.best_of,
        mask_truncated=algorithm.mask_truncated,
        loss=algorithm.loss,
        reward=scheme,
        smooth=algorithm.smooth,
        turns=rollouts.turns,
        contrastive=rollouts.exemplars,
        group=rollouts.group,
        temperature=rollouts.temperature,
        top_p=rollouts.top_p,
        max_completion=rollouts.max_completion,
        kl=algorithm.kl,
        entropy=algorithm.entropy,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        updates_per_batch=updates.updates_per_batch,
        redraws=algorithm.redraws,
        generated_at_once=rollouts.generate_at_once,
        vllm=rollouts.vllm,
        vllm_memory=rollouts.vllm_memory,
        vllm_tensor_parallel=rollouts.vllm_tensor_parallel,
        vllm_max_length=rollouts.vllm_max_length,
        vllm_sleep=rollouts.vllm_sleep,
        vllm_url=rollouts.vllm_url,
        restores=updates.restores,
    )
    set_seed(seed)
    require_runnable(settings)
    model, out = config.policy.model, config.output.out
    load = lambda: load_policy(model, settings.lora, of_weights(settings.precision))  # noqa: E731
    with ExitStack() as stack:
        environment, callbacks = None, [MetricsFile(out), ProgressPrinter()]
        if is_first():
            load()  # what is wrong with it shows before an evaluator starts
            inputs = hashes(sorted(Path(model).glob("*.safetensors")))
            inputs |= {each.task.id: each.task.sha256 for each in tasks}
            evaluator = stack.enter_context(place.evaluator())
            inputs |= config.evaluation.machine(evaluator)
            method = f"rl {algorithm.estimator}"
            stack.enter_context(tracked(out, method, settings, {"training": seed}, inputs))
            pool = stack.enter_context(ProfilingPool(evaluator))
            hacks = stack.enter_context(HackMemory(out / "hacks.db"))
            for known in _runs(data):
                hacks.learn(known)
            grader = Grader(pool, scheme, hacks=hacks)
            by_id = {each.task.id: each for each in tasks}
            if (every := config.held_out.evaluate_every) is not None:
                sampling = SamplingSettings(
                    samples=config.held_out.evaluate_samples,
                    temperature=rollouts.temperature,
                    top_p=rollouts.top_p,
                    max_completion=rollouts.max_completion,
                    seed=seed,
                )
                tokenizer = load_tokenizer(model)
                callbacks.insert(0, HeldOutEvaluation(given.test, pool, tokenizer, sampling, every, out))
            environment = lambda: TrainingEnvironment(  # noqa: E731
                by_id, grader, rollouts.turns, _exemplars(data, tasks), rollouts.exemplars, seed
            )
        done = online_run.train(
            load,
            environment,
            tasks,
            settings,
            out,
            callbacks,
            reporting=reporting(config.output.tracking, out),
        )
    if is_first():
        _tell(config.output, done.policy, done.steps, done.settled)


def _check_held_out(config: RlConfig, given: "Tasks") -> None:
    if config.held_out.evaluate_every is None:
        return
    if not given.test:
        raise UsageError(
            "--evaluate-every: no task was held out", "give a data set of `train curate` as --data"
        )
    if config.policy.deepspeed is not None or os.environ.get("ACCELERATE_USE_FSDP") == "true":
        raise UsageError(
            "--evaluate-every: the first process generates alone, and has not all weights",
            "leave it out, and evaluate the policy with `train evaluate` afterwards",
        )


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


def _tell(output: TrainOutputOptions, written: Path, steps: int, settled: str = "") -> None:
    from kernelwright.rl_training.tracking.card import write_card

    write_card(output.out, written)
    if output.as_json:
        told = {"schema": 1, "folder": str(output.out), "policy": str(written), "steps": steps}
        print(json.dumps(told | ({"settled": settled} if settled else {})))
        return
    if settled:
        Console(highlight=False).print(
            f"Nothing was left to learn after step {steps}: {settled}.", soft_wrap=True
        )
    Console(highlight=False).print(
        f"Written to {written}; see `kernelwright report {output.out}`.", markup=False, soft_wrap=True
    )
