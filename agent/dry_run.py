"""`run --dry-run`: the first prompts of a run and what it may cost, without asking or evaluating anything.

Prices are worked out from the first prompts, their tokens estimated from their lengths, and from replies of
some lengths, for nobody knows how long a model will think:

    a round = the coder's call + the judge's call, as long a prompt each
    the run = tasks x (rounds x the coder's + (rounds - 1) x the judge's), at most --max-usd
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from kernelwright.agent.llm.coder import asked_for
from kernelwright.agent.llm.endpoint.prices import Prices
from kernelwright.agent.llm.model import Message, Usage, estimated_tokens
from kernelwright.agent.llm.prompting import agent_messages
from kernelwright.agent.llm.session import Roles
from kernelwright.agent.llm.situation import Situation
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.search import Agent
from kernelwright.kernelbench.errors import TaskError, UsageError
from kernelwright.kernelbench.evaluator import EvaluationPool, LocalEvaluator
from kernelwright.kernelbench.records import Language, Record, Task
from kernelwright.results import formatting

_REPLIES = (2_000, 10_000)  # tokens: a kernel alone, and with some thought; the third is the limit
_NO_JUDGE = ("best-of-n", Agent.name)  # searches


class FirstPrompt(Record):
    """The first prompt of a task; no messages if its reference fails."""

    task: str
    language: str
    tokens: int  # estimated
    messages: tuple[Message, ...]
    error: str = ""


class Estimate(Record):
    """Cost of rounds with replies of one length; None where a price is not known."""

    reply_tokens: int
    round_usd: float | None
    run_usd: float | None  # without a limit
    rounds: int | None  # that --max-usd pays for; None without it
    tokens: int  # of the run


class DryRun(Record):
    """Output of `run --dry-run --json`."""

    schema_version: int = 1
    model: str
    judge_model: str
    tasks: int
    rounds: int  # of each task
    max_usd: float | None
    prompts: tuple[FirstPrompt, ...]
    estimates: tuple[Estimate, ...]


@dataclass(frozen=True)
class _Calls:
    """Numbers of calls of a role in the run."""

    of_coder: int
    of_judge: int


def dry_run(config: RunConfig, prices: Prices, tasks: Sequence[Task]) -> DryRun:
    """Return the first prompts and estimates of a config that is resolved and checked. Raises UsageError."""
    roles = config.model.roles()
    if roles is None:
        raise UsageError(
            "--dry-run shows the prompts of a language model, and none is asked",
            "give --coder llm --model NAME",
        )
    talks = config.search.search == Agent.name
    # An agent's answers are as many as it likes, up to its turns.
    language, rounds = roles.languages[0], config.search.turns if talks else config.search.rounds
    with config.evaluation.evaluator() as evaluator:
        prompts = _prompts(tasks, language, evaluator, config.execution.workers, talks)
    judged = config.search.search not in _NO_JUDGE and config.model.judge != "none"
    calls = _Calls(len(tasks) * rounds, len(tasks) * (rounds - 1) * judged)
    sizes = [prompt.tokens for prompt in prompts if not prompt.error] or [0]
    mean = sum(sizes) // len(sizes)
    limit = config.model.reply_tokens
    replies = [*(length for length in _REPLIES if length < limit), limit]
    return DryRun(
        model=roles.coder.model,
        judge_model=roles.judge.model,
        tasks=len(tasks),
        rounds=rounds,
        max_usd=config.budget.max_usd,
        prompts=tuple(prompts),
        estimates=tuple(
            _estimate(length, mean, roles, prices, calls, judged, config.budget.max_usd) for length in replies
        ),
    )


def show(found: DryRun, console: Console) -> None:
    """Print the first prompt in full, the sizes of the others and the estimates."""

    def say(line: str = "") -> None:
        console.print(line, markup=False, soft_wrap=True)

    first = next((prompt for prompt in found.prompts if not prompt.error), None)
    if first is not None:
        for message in first.messages:
            say(f"──── {first.task}, {message.role}, about {estimated_tokens(message.content):,} tokens ────")
            say(message.content)
    sizes = Table(box=box.SIMPLE_HEAD, title="first prompts", title_justify="left")
    sizes.add_column("task", overflow="fold")
    sizes.add_column("tokens, about", justify="right")
    for prompt in found.prompts:
        sizes.add_row(prompt.task, prompt.error or f"{prompt.tokens:,}")
    console.print(sizes)
    say("Later prompts are longer: they hold the best file and what came of it, the operators, all attempts.")
    costs = Table(box=box.SIMPLE_HEAD, title="cost, estimated", title_justify="left")
    for column in ("reply tokens", "a round", f"all {found.rounds} rounds", "tokens in all"):
        costs.add_column(column, justify="right")
    if found.max_usd is not None:
        costs.add_column(f"rounds for ${found.max_usd:g}", justify="right")
    for each in found.estimates:
        cells = [
            f"{each.reply_tokens:,}",
            formatting.money(each.round_usd),
            formatting.money(each.run_usd),
            f"{each.tokens:,}",
        ]
        if found.max_usd is not None:
            cells.append(str(each.rounds) if each.rounds is not None else "unknown")
        costs.add_row(*cells)
    console.print(costs)
    names = f"{found.model}, judge {found.judge_model}" if found.judge_model != found.model else found.model
    tasks = f"{found.tasks} task{'s' * (found.tasks != 1)}"
    say(f"{names}; {tasks}. The last row is the most that a reply may take (--reply-tokens).")
    if any(each.round_usd is None for each in found.estimates):
        say("The price of a model is unknown: see --prices.")


def _prompts(
    tasks: Sequence[Task], language: Language, evaluator: LocalEvaluator, workers: int | None, talks: bool
) -> list[FirstPrompt]:
    with EvaluationPool(evaluator, workers) as pool:

        def first(task: Task) -> FirstPrompt:
            try:
                work = pool.work(task)
            except TaskError as error:
                return FirstPrompt(task=task.id, language=language, tokens=0, messages=(), error=str(error))
            situation = Situation(task, evaluator.target, work)
            if talks:
                messages = agent_messages(situation, language, (), None, "")
            else:
                messages = asked_for(situation, language, (), None).messages
            size = sum(estimated_tokens(message.content) for message in messages)
            return FirstPrompt(task=task.id, language=language, tokens=size, messages=messages)

        with ThreadPoolExecutor(max(1, pool.slots)) as executor:
            return list(executor.map(first, tasks))


def _estimate(
    reply: int, prompt: int, roles: Roles, prices: Prices, calls: _Calls, judged: bool, max_usd: float | None
) -> Estimate:
    usage = Usage(prompt_tokens=prompt, completion_tokens=reply)
    coder, judge = prices.of(roles.coder.model), prices.of(roles.judge.model)
    tokens = (calls.of_coder + calls.of_judge) * (prompt + reply)
    if coder is None or judge is None:
        return Estimate(reply_tokens=reply, round_usd=None, run_usd=None, rounds=None, tokens=tokens)
    of_coder, of_judge = coder.usd(usage), judge.usd(usage)
    a_round = of_coder + of_judge * judged
    return Estimate(
        reply_tokens=reply,
        round_usd=a_round,
        run_usd=calls.of_coder * of_coder + calls.of_judge * of_judge,
        rounds=int(max_usd / a_round) if max_usd is not None and a_round else None,
        tokens=tokens,
    )
