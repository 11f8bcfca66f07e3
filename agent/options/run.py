"""Options of `kernelwright run`, and the record of them in a run's database, from which it goes on."""

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Literal, Self, cast

import typer
from pydantic import AfterValidator, Field, JsonValue, ValidationError

from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, KERNEL_KNOBS
from kernelwright.agent.command.options import CommandOptions
from kernelwright.agent.llm.endpoint.prices import Price, Prices, read_prices
from kernelwright.agent.llm.model import Endpoint, Sampling
from kernelwright.agent.llm.session import Roles, Terms, languages_for
from kernelwright.agent.options.evaluation import EvaluationOptions
from kernelwright.agent.options.old_runs import upgraded
from kernelwright.agent.search.registry import SearchOptions
from kernelwright.agent.seeds import read_seed
from kernelwright.agent.spending.budget import SpendingLimits
from kernelwright.agent.tracking.trackers import TrackerName, check_tracker
from kernelwright.agent.tuner.policy.folder import require_policy
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.cli import (
    CastTo,
    Init,
    Inputs,
    Json,
    KernelbenchDir,
    Overrides,
    Sizes,
)
from kernelwright.kernelbench.errors import MissingPrerequisite, StorageError, UsageError
from kernelwright.kernelbench.evaluator import most_slots
from kernelwright.kernelbench.languages import GPU_LANGUAGES, WRITTEN
from kernelwright.kernelbench.machine import cache_folder, compiler
from kernelwright.kernelbench.options import Section, given
from kernelwright.kernelbench.records import Language, Precision, Task
from kernelwright.profiling.selection import Selection, stored
from kernelwright.results.archives.kernelbench_runs import AUDIT
from kernelwright.results.store.database import RunDatabase

MODEL_TASKS = 16  # at a time by default, where models write: most of them wait for one
_SEEDS = ("builtin", "none")  # other ones are files
# Sections and fields that may be given again with --resume, for they are not part of what a run is.
_REVISABLE = frozenset({"budget", "execution", "learn_from", "as_json"})
Shown = Literal["results", "progress", "nothing"]
_OF_A_REPLAY = frozenset({"out", "as_json"})


def _json_object(text: str | None) -> str | None:
    try:
        found = json.loads(text) if text is not None else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return text


class TaskOptions(Section):
    """Tasks of the run, which its database keeps."""

    tasks: Annotated[
        tuple[str, ...],
        typer.Argument(help="FILE.py, FILE.py:CLASS, builtin:level1/softmax, kernelbench:2/40."),
    ] = ()
    inputs: Inputs = None
    init: Init = None
    suite: Annotated[str | None, typer.Option(help="Suite: builtin:level1, or a list file.")] = None
    overrides: Overrides = None
    sizes: Sizes = None
    precision: CastTo = Precision.task
    kernelbench_dir: KernelbenchDir = None
    written: tuple[tuple[str, str], ...] = ()  # ids and texts, of modules that the Python API was given

    def resolve(self, device: str) -> list[Task]:
        """Return the tasks of all names, for "cpu" or "cuda:0". Raises UsageError for an unknown name."""
        if self.written:
            return [sources.task_of_text(name, text, self.precision) for name, text in self.written]
        return sources.resolve(
            list(self.tasks),
            suite=self.suite,
            kernelbench_dir=self.kernelbench_dir,
            overrides=sources.from_words(self.overrides or []),
            precision=self.precision,
            device=device,
            inputs=self.inputs or (),
            init=self.init or (),
            sizes=self.sizes or (),
        )


class ModelOptions(CommandOptions):
    """Authors of kernels and of advice, and how language models among them are asked."""

    coder: Annotated[Literal["builtin", "llm", "command"], typer.Option(help="Author of the kernels.")] = (
        "builtin"
    )
    judge: Annotated[Literal["rules", "llm", "none"] | None, typer.Option(help="Adviser.")] = None
    seed: Annotated[str, typer.Option(metavar="SEED", help="Kernel to beat: builtin, none, or FILE.py.")] = (
        "builtin"
    )
    seed_source: str = ""  # of a file
    repairs: Annotated[int, Field(ge=0), typer.Option(help="Repairs of a failed file.")] = 3
    parts: Annotated[
        Literal["auto", "none"],
        typer.Option(hidden=True, help="Search expensive submodules of large tasks by themselves, or not."),
    ] = "auto"
    model: Annotated[str | None, typer.Option(help="Language model, at OPENAI_BASE_URL.")] = None
    judge_model: Annotated[str | None, typer.Option(help="Language model of the judge.")] = None
    language: Annotated[
        tuple[str, ...],
        typer.Option(help="Kernel language: cpp, triton or cuda."),
    ] = ()
    temperature: Annotated[
        float | None, Field(ge=0, le=2), typer.Option(help="Temperature of the coder's model.")
    ] = None
    judge_temperature: Annotated[
        float | None, Field(ge=0, le=2), typer.Option(help="Temperature of the judge's model.")
    ] = None
    reasoning_effort: Annotated[str | None, typer.Option(help="Effort of the model, such as high.")] = None
    judge_reasoning_effort: Annotated[str | None, typer.Option(help="Effort of the judge's model.")] = None
    reply_tokens: Annotated[int, Field(ge=1), typer.Option(help="Tokens per reply.")] = 16384
    extra_body: Annotated[
        str | None,
        AfterValidator(_json_object),
        typer.Option(metavar="JSON", hidden=True, help="Fields of requests, as '{\"top_p\": 1}'."),
    ] = None
    selection: Selection | None = None  # of metrics, that the judge is shown; None: the usual ones

    def roles(self) -> Roles | None:
        """Roles of language models; None where there is no model."""
        if self.model is None:
            return None
        return Roles(
            coder=self._sampling(self.model, self.temperature, self.reasoning_effort),
            judge=self._sampling(
                self.judge_model or self.model, self.judge_temperature, self.judge_reasoning_effort
            ),
            languages=cast(tuple[Language, ...], self.language),
            selection=self.selection,
        )

    def _sampling(self, model: str, temperature: float | None, effort: str | None) -> Sampling:
        return Sampling(
            model=model, temperature=temperature, reasoning_effort=effort, max_tokens=self.reply_tokens
        )


class TunerOptions(Section):
    """Tuner of the builtin coder's schedules, and what is learned from other tasks and runs."""

    hold: Annotated[
        tuple[str, ...], typer.Option(metavar="KNOB", help="Keep this knob as it is; repeatable.")
    ] = ()
    rank_by: Annotated[Path | None, typer.Option(metavar="DIR", help="Policy to ask before the rules.")] = (
        None
    )
    memory: Annotated[bool, typer.Option(help="Learn from other tasks.")] = True
    learn_from: Annotated[
        tuple[Path, ...], typer.Option(metavar="RUN", help="Learn from this run, too; repeatable.")
    ] = ()


class EvaluationBudget(Section):
    """Limits of time and evaluations, of a run and of each task."""

    max_minutes: Annotated[float | None, Field(gt=0), typer.Option(help="Minutes for the run.")] = None
    max_minutes_per_task: Annotated[
        float | None, Field(gt=0), typer.Option(help="Minutes of work on each task.")
    ] = None
    max_evaluations: Annotated[
        int | None, Field(ge=2), typer.Option(help="Evaluations; each winner counts twice.")
    ] = None
    max_evaluations_per_task: Annotated[
        int | None, Field(ge=2), typer.Option(help="Evaluations for each task.")
    ] = None


class BudgetOptions(EvaluationBudget):
    """Limits of a run and of each task; those of a run that goes on are replaced by those given then."""

    max_usd: Annotated[float | None, Field(ge=0), typer.Option(help="Cost of models, in USD.")] = None
    max_usd_per_task: Annotated[
        float | None, Field(ge=0), typer.Option(help="Cost of models for each task.")
    ] = None
    max_tokens: Annotated[
        int | None, Field(ge=0), typer.Option(help="Tokens of models, prompts included.")
    ] = None
    max_tokens_per_task: Annotated[
        int | None, Field(ge=0), typer.Option(help="Tokens of models for each task.")
    ] = None

    @property
    def run(self) -> SpendingLimits:
        return SpendingLimits(
            usd=self.max_usd,
            tokens=self.max_tokens,
            evaluations=self.max_evaluations,
            minutes=self.max_minutes,
        )

    @property
    def task(self) -> SpendingLimits:
        return SpendingLimits(
            usd=self.max_usd_per_task,
            tokens=self.max_tokens_per_task,
            evaluations=self.max_evaluations_per_task,
            minutes=self.max_minutes_per_task,
        )


class ExecutionOptions(Section):
    """Options of execution, which may change when a run is resumed."""

    workers: Annotated[int | None, typer.Option(help="Evaluations at a time.", show_default="a few")] = None
    tasks_at_once: Annotated[
        int | None,
        Field(ge=1),
        typer.Option(help="Tasks at a time.", show_default=f"{MODEL_TASKS} with a model"),
    ] = None
    price: Annotated[
        str | None, typer.Option(metavar="IN/OUT", help="USD per million tokens of --model.")
    ] = None
    tracking: Annotated[
        tuple[TrackerName, ...],
        typer.Option(hidden=True, help="Track by otel, trackio or wandb; repeatable."),
    ] = ()
    prices: Annotated[
        Path | None, typer.Option(hidden=True, help="Prices besides genai-prices', as TOML.")
    ] = None
    service_tier: Annotated[str | None, typer.Option(hidden=True, help="Service tier, such as flex.")] = None
    silence_limit: Annotated[
        float, Field(gt=0), typer.Option(metavar="S", hidden=True, help="Silence in an answer.")
    ] = Endpoint.silence_s
    call_limit: Annotated[
        float, Field(gt=0), typer.Option(metavar="S", hidden=True, help="Time for an answer.")
    ] = Endpoint.call_s
    retry_limit: Annotated[
        float, Field(gt=0), typer.Option(metavar="S", hidden=True, help="Time to retry a call.")
    ] = Endpoint.patience_s
    requests_a_minute: Annotated[
        float | None, typer.Option(hidden=True, help="Rate limit of the endpoint.")
    ] = None
    tokens_a_minute: Annotated[
        float | None, typer.Option(hidden=True, help="Token limit of the endpoint.")
    ] = None

    def check(self) -> None:
        """Check the options. Raises UsageError."""
        if self.workers is not None and not 1 <= self.workers <= most_slots():
            raise UsageError(
                f"--workers {self.workers} is not for this machine",
                f"its memory is enough for 1 to {most_slots()}",
            )
        for name in self.tracking:
            check_tracker(name)


class RunOutputOptions(Section):
    """Folder of the run, new or known, and the format of the summary."""

    out: Annotated[Path | None, typer.Option(help="New folder of the run.", show_default="runs/DATE")] = None
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run in this folder.")] = (
        None
    )
    replay: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Repeat a run's decisions, measuring nothing.")
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the first prompts and their price.")] = (
        False
    )
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="PostgreSQL database, not DIR/run.db."),
    ] = None
    as_json: Json = False
    shown: Shown = "results"  # the Python API returns the results


class RunConfig(Section):
    """All that a run is asked to do; --resume goes by its record, which has no `execution` and `output`."""

    tasks: TaskOptions = TaskOptions()
    model: ModelOptions = ModelOptions()
    search: SearchOptions = SearchOptions()
    tuner: TunerOptions = TunerOptions()
    budget: BudgetOptions = BudgetOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    execution: ExecutionOptions = ExecutionOptions()
    output: RunOutputOptions = RunOutputOptions()

    @classmethod
    def recorded(cls, database: RunDatabase) -> Self:
        """Read the config of a run. Raises StorageError for one of another version that this cannot read."""
        if AUDIT in database.settings:
            raise StorageError("this folder holds an audit", "go on with it by kernelwright audit --resume")
        try:
            return cls.model_validate(upgraded(database.settings))
        except (ValidationError, TypeError, KeyError, AttributeError):
            written_by = database.run.kernelwright
            raise StorageError(
                f"the settings of this run, of kernelwright {written_by}, are not those of this version",
                "start a new run with another --out",
            ) from None

    def record(self) -> dict[str, JsonValue]:
        return self.model_dump(mode="json", exclude={"execution", "output"})

    def resolved(self) -> Self:
        """Fill in all that depends on this machine. Raises UsageError."""
        evaluation = self.evaluation.resolved()
        seed, policy = self.model.seed, self.tuner.rank_by
        model = {
            "seed_source": "" if seed in _SEEDS else read_seed(Path(seed)),
            "language": self._languages(evaluation.written_for),
            "selection": stored(cache_folder(), evaluation.device) if self._surveyed_here else None,
        }
        learning = self._learning_from(())
        rank_by = policy.resolve() if policy is not None else None
        return learning.model_copy(
            update={
                "tuner": learning.tuner.model_copy(update={"rank_by": rank_by}),
                "evaluation": evaluation,
                "model": self.model.model_copy(update=model),
                "search": self.search.for_coder(self.model.coder),
            }
        )

    @property
    def _surveyed_here(self) -> bool:
        """True if a model is shown metrics of this machine."""
        return self.model.model is not None and not self.evaluation.elsewhere

    def named_tasks(self) -> list[Task]:
        """Return the tasks, once the config is resolved. Raises UsageError, also for one seed of several."""
        tasks = self.tasks.resolve(self.evaluation.device)
        if self.model.seed_source and len(tasks) > 1:
            raise UsageError(
                f"--seed {self.model.seed} is a kernel for one task, and there are {len(tasks)}",
                "give one task, or --seed builtin",
            )
        return tasks

    def revised_by(self, new: "RunConfig") -> Self:
        """Return the config of a resumed run with the `new` options; limits hold until others are given."""
        limits = {name: getattr(new.budget, name) for name in new.budget.model_fields_set}
        update = {
            "budget": self.budget.model_copy(update=limits),
            "execution": new.execution,
            "output": new.output,
        }
        return self._learning_from(new.tuner.learn_from).model_copy(update=update)

    def require_only(self, option: Literal["resume", "replay"]) -> None:
        """Check that nothing is given beside an option that takes a run as it is. Raises UsageError."""
        allowed = {option, *(_REVISABLE if option == "resume" else _OF_A_REPLAY)}
        for other in given(self):
            if not {other.name, other.section} & allowed:
                raise UsageError(f"--{option} takes {other.flag} from the run", "leave it out")

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the models."""
        options = self.execution
        extra = json.loads(self.model.extra_body or "{}")
        tier = {"service_tier": options.service_tier} if options.service_tier is not None else {}
        return Endpoint(
            patience_s=options.retry_limit,
            call_s=options.call_limit,
            silence_s=options.silence_limit,
            requests_a_minute=options.requests_a_minute,
            tokens_a_minute=options.tokens_a_minute,
            extra=extra | tier,
        )

    def terms(self, endpoint: Endpoint | None = None) -> Terms:
        """Return the terms of use of the models. Raises UsageError for prices that are none."""
        endpoint, options = endpoint or self.endpoint, self.execution
        own = read_prices(options.prices) if options.prices is not None else {}
        if options.price is not None and self.model.model is not None:
            own[self.model.model] = Price.parse(options.price)
        tier = endpoint.extra.get("service_tier")
        prices = Prices(own, listed=True, address=endpoint.url, tier=str(tier) if tier else None)
        return Terms(endpoint, prices, self.budget.run, self.budget.task)

    @property
    def builtin_language(self) -> Language:
        """Language of the builtin coder's kernels, also beside those of models."""
        usual = "cpp" if self.evaluation.written_for == "cpu" else "triton"
        return cast(Language, next(iter(self.model.language), usual))

    @property
    def timed(self) -> bool:
        """True if kernels in the languages of the run can be timed here."""
        return self.evaluation.device != "cpu" or not GPU_LANGUAGES & set(self.model.language)

    def check(self) -> None:
        """Check that the run can be executed. Raises UsageError, MissingPrerequisite."""
        model, hold = self.model, self.tuner.hold
        self.evaluation.check()
        self.execution.check()
        judges = {"llm": (None, "llm", "none"), "builtin": (None, "rules"), "command": (None, "none")}
        if model.judge not in judges[model.coder]:
            raise UsageError(
                "the rules judge reads schedules that only the builtin coder writes, an llm judge code",
                "give --coder llm with --judge llm or --judge none, or neither",
            )
        if (model.coder == "llm") != (model.model is not None):
            raise UsageError("--coder llm and --model belong together", "give both, or neither")
        model.check_command(model.coder)
        on_cpu = self.evaluation.device == "cpu"
        self.search.check(model.coder, model.language, self.timed)
        knobs = [*GRAPH_KNOBS, *KERNEL_KNOBS]
        unknown = [name for name in hold if name not in knobs]
        if unknown or (hold and model.coder != "builtin"):
            raise UsageError(
                f"--hold {unknown[0]} is no knob" if unknown else "--hold goes with --coder builtin",
                f"the builtin coder's knobs are {', '.join(knobs)}",
            )
        if model.coder == "builtin":
            self._check_builtin_language()
        self._check_policy()
        if on_cpu and not self.evaluation.elsewhere and compiler() is None:
            raise MissingPrerequisite(
                "C++ kernels need a C++ compiler",
                "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX",
            )

    def _check_policy(self) -> None:
        policy = self.tuner.rank_by
        if policy is None:
            return
        if self.model.coder != "builtin" or self.builtin_language != "cpp":
            raise UsageError("--rank-by goes with --coder builtin and C++", "leave it out")
        if self.evaluation.elsewhere:
            raise UsageError("--rank-by does not go with --evaluator or --cluster", "leave it out")
        require_policy(policy)

    def _check_builtin_language(self) -> None:
        language, device = self.builtin_language, self.evaluation.device
        on_cpu = device == "cpu" and not self.evaluation.chips
        known = WRITTEN if on_cpu else tuple(name for name in WRITTEN if name in GPU_LANGUAGES)
        if language not in known:
            raise UsageError(
                f"the builtin coder writes no {language} kernels for {device}", f"choose {', '.join(known)}"
            )
        missing = not self.evaluation.elsewhere and importlib.util.find_spec("triton") is None
        if language == "triton" and missing:
            raise MissingPrerequisite(
                "Triton kernels need Triton, which checks them on the CPU too", "pip install triton"
            )

    def _languages(self, device: str) -> tuple[Language, ...]:
        """Languages of the coder, the usual one where none is given. Raises UsageError."""
        names = self.model.language
        if self.model.model is None:
            if len(names) > 1:
                raise UsageError("the builtin coder writes in one language", "give one --language")
            for name in names:
                if name not in WRITTEN:
                    raise UsageError(f"--language {name} is unknown", "choose cpp, triton or cuda")
            return cast(tuple[Language, ...], names) or (("cpp",) if device == "cpu" else ("triton",))
        known = languages_for(device)
        for name in names:
            if name not in known:
                raise UsageError(f"models write no {name} kernels for {device}", f"choose {', '.join(known)}")
        return tuple(name for name in known if name in names) or known[:1]

    def _learning_from(self, more: tuple[Path, ...]) -> Self:
        runs = tuple(dict.fromkeys(path.resolve() for path in (*self.tuner.learn_from, *more)))
        return self.model_copy(update={"tuner": self.tuner.model_copy(update={"learn_from": runs})})
