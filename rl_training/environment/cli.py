"""`kernelwright train check`."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field
from rich.console import Console

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.options import Section, command
from kernelwright.rl_training.environment.place import RewardPlaceOptions
from kernelwright.rl_training.trainers.options import Reward, Sources

if TYPE_CHECKING:
    from kernelwright.rl_training.environment.gold import GoldCheck


class CheckedTaskOptions(Section):
    """Tasks and their reward."""

    data: Sources
    reward: Reward = "log-speedup"
    most: Annotated[
        int | None,
        Field(ge=1),
        typer.Option(metavar="N", help="Tasks to check, the first ones.", show_default="all"),
    ] = None
    as_json: Json = False


class CheckConfig(Section):
    """Options of `kernelwright train check`."""

    tasks: CheckedTaskOptions
    evaluation: RewardPlaceOptions = RewardPlaceOptions()


@command(CheckConfig)
def check(config: CheckConfig) -> None:
    """Check that each task rewards the right thing, before a policy is trained on it.

    The kernel that won in the runs must be as fast as it was; the reference, unchanged, renamed or with a
    kernel that nobody calls, must earn what a wrong file earns. Exit status 1 if a task does otherwise.
    """
    from kernelwright.agent.profiled import ProfilingPool
    from kernelwright.rl_training.environment.gold import gold_check
    from kernelwright.rl_training.environment.grader import Grader
    from kernelwright.rl_training.rewards.scheme import scheme_of
    from kernelwright.rl_training.tasks import tasks_of_device

    asked, place = config.tasks, config.evaluation.resolved()
    scheme, given = scheme_of(asked.reward), tasks_of_device(asked.data, 0, place.device)
    chosen = [*given.train, *given.test][: asked.most]
    console = Console(stderr=asked.as_json, highlight=False)
    found: list[GoldCheck] = []
    with ExitStack() as stack:
        pool = stack.enter_context(ProfilingPool(stack.enter_context(place.evaluator())))
        threads = stack.enter_context(ThreadPoolExecutor(pool.slots))
        for checked in threads.map(partial(gold_check, Grader(pool, scheme)), chosen):
            found.append(checked)
            for problem in checked.problems:
                console.print(f"{checked.task}: {problem}", markup=False, soft_wrap=True)
    wrong = [each for each in found if each.problems]
    if asked.as_json:
        checks = [each.model_dump(mode="json") for each in found]
        print(json.dumps({"schema": 1, "tasks": checks, "wrong": len(wrong)}))
    else:
        without = sum(each.winner is None for each in found)
        console.print(
            f"{len(found) - len(wrong)} of {len(found)} tasks reward what they should"
            + (f"; {without} have no kernel of the runs to try" if without else ""),
        )
    if wrong:
        raise typer.Exit(1)
