"""The run database: every evaluation that was paid for, stored the moment it is known.

One `RunDatabase` is one run. Each method is one transaction: when it returns, what it recorded survives `kill
-9`; if it does not return, nothing of it is there. Methods raise StorageError if the database is full,
locked, read-only, damaged or gone. Threads may share one.
"""

import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError
from sqlalchemy import URL, Engine, func, inspect, select
from sqlalchemy.orm import Session

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.records import Advice, Candidate, Environment, Evaluation, Record, Target, Task
from kernelwright.kernelbench.version import kernelwright_version
from kernelwright.profiling.records import Profile
from kernelwright.profiling.roofline import with_floor
from kernelwright.results.store.connection import (
    damaged,
    engine_for,
    location,
    require_present,
    run_of,
    shown,
    storage_errors,
    writing,
)
from kernelwright.results.store.encoding import column_text, json_text, record_text
from kernelwright.results.store.records import LlmCall, RecordedAttempt, RecordedRun, TaskRun, TaskState
from kernelwright.results.store.rows import (
    SCHEMA_VERSION,
    AttemptRow,
    Base,
    EvaluationRow,
    LlmCallRow,
    ProfileRow,
    RunRow,
    SchemaRow,
    TaskRow,
)
from kernelwright.results.store.schema import NoRunError, is_older, migrate, no_run

R = TypeVar("R", bound=Record)
__all__ = ["NoRunError", "RunDatabase"]

JSON = TypeAdapter[JsonValue](JsonValue)
_SETTINGS = TypeAdapter[dict[str, JsonValue]](dict[str, JsonValue])
_LESSONS = TypeAdapter[dict[str, tuple[str, ...]]](dict[str, tuple[str, ...]])


class RunDatabase:
    def __init__(self, url: URL, engine: Engine, run_id: str) -> None:
        """Wrap an engine; use `create` or `open` instead."""
        self.url = url
        self.engine = engine
        self.run_id = run_id

    @classmethod
    def create(
        cls,
        where: Path | str,
        *,
        settings: Mapping[str, JsonValue],
        target: Target,
        environment: Environment | None = None,
        command: str = "",
        tasks: Iterable[Task] = (),
    ) -> Self:
        """Start a run of `tasks` in `where` (run folder, SQLite file or URL), creating tables if needed."""
        url, named = run_of(location(where))
        engine = engine_for(url, read_only=False)
        run = RunRow(
            id=named or uuid.uuid4().hex,
            started=datetime.now(UTC).isoformat(),
            command=column_text(command),
            settings=json_text(dict(settings)),
            kernelwright=kernelwright_version(),
            target=record_text(target),
            fingerprint=record_text(target.fingerprint),
            environment=None if environment is None else record_text(environment),
        )
        database = cls(url, engine, run.id)
        try:
            with database._write() as session:
                connection = session.connection()
                if inspect(connection).has_table(SchemaRow.__tablename__):
                    migrate(session, url)
                else:
                    Base.metadata.create_all(connection)
                    session.add(SchemaRow(version=SCHEMA_VERSION, written_by=kernelwright_version()))
                session.add(run)
                session.flush()
                for task in tasks:  # with the run itself, so that no part of them is taken for all
                    database._add_task(session, task)
        except BaseException:
            database.close()
            raise
        return database

    @classmethod
    def open(cls, where: Path | str, *, run_id: str | None = None, read_only: bool = False) -> Self:
        """Open the run `run_id`, or the latest one, of an existing database.

        One of an older schema is migrated first, also for a reader. Raises StorageError if there is none, or
        if its schema is newer than the one this version writes.
        """
        url, named = run_of(location(where))
        run_id = run_id or named
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
            raise no_run(url)
        engine = engine_for(url, read_only)
        database = cls(url, engine, "")
        try:
            with database._read() as session:
                if not inspect(session.connection()).has_table(SchemaRow.__tablename__):
                    raise no_run(url)
                older = is_older(session, url)
            if older:
                database._migrate_older()
            with database._read() as session:
                runs = select(RunRow.id).order_by(RunRow.started.desc())
                found = session.scalar(runs if run_id is None else runs.where(RunRow.id == run_id))
                if found is None:
                    raise no_run(url)
        except BaseException:
            database.close()
            raise
        database.run_id = found
        return database

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # what is recorded

    def add_task(self, task: Task) -> None:
        """Add a task as pending. Does nothing if the run has it already, as after --resume.

        Raises UsageError if the run has another task under this id.
        """
        self.add_tasks([task])

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        """Add all of these tasks or, where that fails, none; as `add_task` does."""
        with self._write() as session:
            for task in tasks:
                self._add_task(session, task)

    def record_audit(self, task_id: str, audit: str, *, measures_nothing: str = "") -> None:
        """Record the audit of a reference. `measures_nothing`: why it measures nothing; "" if it does not."""
        with self._write() as session:
            row = self._known_task(session, task_id)
            row.audit = column_text(audit)
            row.measures_nothing = bool(measures_nothing)
            row.measures_nothing_why = column_text(measures_nothing)

    def record_attempt(
        self,
        task_id: str,
        round: int,
        candidate: Candidate,
        advice: Advice | None,
        evaluation: Evaluation,
        profile: Profile | None,
        *,
        confirms: bool = False,
    ) -> int:
        """Record one candidate with its evaluation and profile; return the attempt's id.

        `confirms`: the candidate had been tried before and won; this evaluation is the one that counts.
        """
        assert evaluation.candidate == candidate.sha256, "an evaluation of another candidate"
        with self._write() as session:
            attempt = AttemptRow(
                run=self.run_id,
                task=self._known_task(session, task_id).key,
                round=round,
                confirms=confirms,
                candidate_sha256=candidate.sha256,
                candidate_source=column_text(candidate.source),
                candidate=record_text(candidate),
                advice=None if advice is None else record_text(advice),
            )
            session.add(attempt)
            session.flush()
            session.add(_evaluation_row(attempt.id, evaluation))
            if profile is not None:
                session.add(ProfileRow(attempt=attempt.id, profile=record_text(profile)))
            return attempt.id

    def record_profile(self, task_id: str, round: int, profile: Profile) -> None:
        """Replace the profile of a round's attempt by one that extends it."""
        with self._write() as session:
            attempt = session.scalars(
                select(AttemptRow.id).where(
                    AttemptRow.task == self._known_task(session, task_id).key,
                    AttemptRow.round == round,
                    AttemptRow.confirms.is_(False),
                )
            ).one()
            session.merge(ProfileRow(attempt=attempt, profile=record_text(profile)))

    def record_llm_call(self, call: LlmCall) -> None:
        with self._write() as session:
            session.add(
                LlmCallRow(
                    **call.model_dump(exclude={"request", "response"}),
                    run=self.run_id,
                    request=json_text(call.request),
                    response=json_text(call.response),
                )
            )

    def record_lessons(self, task_id: str, lessons: Mapping[str, Sequence[str]]) -> None:
        """Record the lessons from other tasks' kernels shown to models for a task, at each occasion."""
        told: JsonValue = {occasion: list(lines) for occasion, lines in lessons.items()}
        with self._write() as session:
            self._known_task(session, task_id).lessons = json_text(told)

    def record_settings(self, settings: Mapping[str, JsonValue]) -> None:
        """Replace the settings of the run from now on."""
        with self._write() as session:
            session.get_one(RunRow, self.run_id).settings = json_text(dict(settings))

    def finish_task(self, task_id: str, stop_reason: str) -> None:
        """Mark a task as done."""
        with self._write() as session:
            row = self._known_task(session, task_id)
            row.state, row.stop_reason = TaskState.done, column_text(stop_reason)

    # what can be read

    @property
    def run(self) -> RecordedRun:
        with self._read() as session:
            row = session.get_one(RunRow, self.run_id)
            with self._readable():
                settings = _SETTINGS.validate_json(row.settings)
            return RecordedRun(
                id=row.id,
                started=row.started,
                command=row.command,
                settings=settings,
                kernelwright=row.kernelwright,
                target=self._read_record(Target, row.target),
                environment=self._read_optional(Environment, row.environment),
            )

    @property
    def settings(self) -> dict[str, JsonValue]:
        return self.run.settings

    def tasks(self) -> list[TaskRun]:
        """Return the tasks in the order they were added."""
        with self._read() as session:
            rows = session.scalars(select(TaskRow).where(TaskRow.run == self.run_id).order_by(TaskRow.key))
            with self._readable():
                return [
                    TaskRun(
                        task=self._read_record(Task, row.record),
                        state=TaskState(row.state),
                        stop_reason=row.stop_reason,
                        measures_nothing=row.measures_nothing,
                        measures_nothing_why=row.measures_nothing_why,
                        audit=row.audit,
                        lessons=_LESSONS.validate_json(row.lessons),
                    )
                    for row in rows
                ]

    def evaluations(self) -> dict[str, int]:
        """Return the number of evaluations per task; rejected and repeated candidates do not count."""
        with self._read() as session:
            rows = session.execute(
                select(TaskRow.task, func.count())
                .join(AttemptRow, AttemptRow.task == TaskRow.key)
                .join(EvaluationRow, EvaluationRow.attempt == AttemptRow.id)
                .where(TaskRow.run == self.run_id, EvaluationRow.seconds > 0)
                .group_by(TaskRow.task)
            )
            return {row[0]: row[1] for row in rows}

    def seconds(self, task_id: str) -> float:
        """Return the seconds that the evaluations, profiles and model calls of a task have taken."""
        with self._read() as session:
            evaluated = session.scalar(
                select(func.sum(EvaluationRow.seconds))
                .join(AttemptRow, EvaluationRow.attempt == AttemptRow.id)
                .join(TaskRow, AttemptRow.task == TaskRow.key)
                .where(TaskRow.run == self.run_id, TaskRow.task == task_id)
            )
            asked = session.scalar(
                select(func.sum(LlmCallRow.seconds)).where(
                    LlmCallRow.run == self.run_id, LlmCallRow.task == task_id
                )
            )
            profiles = session.scalars(
                select(ProfileRow.profile)
                .join(AttemptRow, ProfileRow.attempt == AttemptRow.id)
                .join(TaskRow, AttemptRow.task == TaskRow.key)
                .where(TaskRow.run == self.run_id, TaskRow.task == task_id)
            )
            profiled = math.fsum(self._read_record(Profile, profile).seconds for profile in profiles)
            return (evaluated or 0.0) + (asked or 0.0) + profiled

    def attempts(self, task_id: str) -> list[RecordedAttempt]:
        """Return the attempts at a task in the order they were recorded; empty for an unknown task."""
        with self._read() as session:
            rows = session.execute(
                select(AttemptRow, EvaluationRow.evaluation, ProfileRow.profile)
                .join(TaskRow, TaskRow.key == AttemptRow.task)
                .join(EvaluationRow, EvaluationRow.attempt == AttemptRow.id)
                .outerjoin(ProfileRow, ProfileRow.attempt == AttemptRow.id)
                .where(TaskRow.run == self.run_id, TaskRow.task == task_id)
                .order_by(AttemptRow.id)
            )
            return [
                RecordedAttempt(
                    id=row.id,
                    task=task_id,
                    round=row.round,
                    confirms=row.confirms,
                    candidate=self._read_record(Candidate, row.candidate),
                    advice=self._read_optional(Advice, row.advice),
                    evaluation=with_floor(self._read_record(Evaluation, evaluation), profile),
                    profile=profile,
                )
                for row, evaluation, text in rows
                for profile in [self._read_optional(Profile, text)]
            ]

    def llm_calls(self) -> list[LlmCall]:
        """Return every model call of the run in the order they were recorded."""
        with self._read() as session:
            rows = session.scalars(
                select(LlmCallRow).where(LlmCallRow.run == self.run_id).order_by(LlmCallRow.id)
            )
            with self._readable():
                return [_llm_call(row) for row in rows]

    def llm_calls_with(self, request_sha256: str) -> list[LlmCall]:
        """Return the model calls with this request, in the order they were recorded."""
        with self._read() as session:
            rows = select(LlmCallRow).where(
                LlmCallRow.run == self.run_id, LlmCallRow.request_sha256 == request_sha256
            )
            found = session.scalars(rows.order_by(LlmCallRow.id))
            with self._readable():
                return [_llm_call(row) for row in found]

    # the machinery

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with storage_errors(self.url), Session(writing(self.engine)) as session, session.begin():
            session.connection()
            require_present(self.url)
            yield session

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with storage_errors(self.url), Session(self.engine) as session:
            yield session

    def _migrate_older(self) -> None:
        """Migrate this database, which a reader's own connection may not write to."""
        engine = engine_for(self.url, read_only=False)
        try:
            with RunDatabase(self.url, engine, "")._write() as session:
                migrate(session, self.url)
        except StorageError as error:
            raise StorageError(
                f"{shown(self.url)} is of an older version and cannot be migrated: {error.message}",
                "copy it to a folder that can be written",
            ) from error
        finally:
            engine.dispose()

    def _task_row(self, session: Session, task_id: str) -> TaskRow | None:
        return session.scalar(select(TaskRow).where(TaskRow.run == self.run_id, TaskRow.task == task_id))

    def _add_task(self, session: Session, task: Task) -> None:
        row = self._task_row(session, task.id)
        if row is None:
            row = TaskRow(run=self.run_id, task=task.id, record=record_text(task), level=task.level)
            session.add(row)
        elif self._read_record(Task, row.record).sha256 != task.sha256:
            raise UsageError(
                f"{task.id} has changed since this run began",
                "start a new run with another --out",
            )

    def _known_task(self, session: Session, task_id: str) -> TaskRow:
        row = self._task_row(session, task_id)
        assert row is not None, f"{task_id} was not added to this run"
        return row

    def _read_record(self, kind: type[R], text: str) -> R:
        with self._readable():
            return kind.model_validate_json(text)

    def _read_optional(self, kind: type[R], text: str | None) -> R | None:
        return None if text is None else self._read_record(kind, text)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except ValidationError as error:
            raise StorageError(
                f"{shown(self.url)} holds a record (of type {error.title}) that this version cannot read",
                "read it with the version that wrote it; if that is this one, "
                f"the database is damaged: {damaged(self.url).fix}",
            ) from error
        except ValueError as error:  # a state of a task, or text where a number belongs
            raise damaged(self.url) from error


def _llm_call(row: LlmCallRow) -> LlmCall:
    return LlmCall(
        task=row.task,
        role=row.role,
        model=row.model,
        request_sha256=row.request_sha256,
        request=JSON.validate_json(row.request),
        response=JSON.validate_json(row.response),
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        usd=row.usd,
        seconds=row.seconds,
    )


def _evaluation_row(attempt: int, evaluation: Evaluation) -> EvaluationRow:
    row = EvaluationRow(
        attempt=attempt,
        verdict=evaluation.verdict,
        reason=column_text(evaluation.reason),
        evaluation=record_text(evaluation),
        own_kernel_share=evaluation.own_kernel_share,
        candidate_us=evaluation.timing and evaluation.timing.candidate_us.median,
        seconds=evaluation.stages.total_s,
    )
    for baseline in ("eager", "compile", "fastest"):
        interval = evaluation.speedup and getattr(evaluation.speedup, baseline)
        for bound in ("median", "low", "high"):
            setattr(row, f"speedup_{baseline}_{bound}", interval and getattr(interval, bound))
    return row
