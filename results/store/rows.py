"""Tables of the run database, in portable SQL (SQLite and PostgreSQL).

Every record is stored in full as JSON text in a column named after it; the other columns repeat what one
wants to query. Text rather than a JSON type, because a measured number may be infinite or NaN, which Python's
JSON can express and PostgreSQL's cannot.
"""

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA_VERSION = 2  # see `migrations`
OLDEST_SCHEMA = 1  # that can be migrated


class Base(DeclarativeBase):
    pass


class SchemaRow(Base):
    """A single row: the schema version of this database."""

    __tablename__ = "schema_version"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    written_by: Mapped[str] = mapped_column(String(64))  # kernelwright's version


class RunRow(Base):
    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    started: Mapped[str] = mapped_column(String(40))  # ISO 8601, UTC: sorts as time
    command: Mapped[str] = mapped_column(Text)
    settings: Mapped[str] = mapped_column(Text)
    kernelwright: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(Text)
    environment: Mapped[str | None] = mapped_column(Text)


class TaskRow(Base):
    __tablename__ = "tasks"
    __table_args__ = (UniqueConstraint("run", "task"),)

    key: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    task: Mapped[str] = mapped_column(Text)  # Task.id
    record: Mapped[str] = mapped_column(Text)
    level: Mapped[int]
    state: Mapped[str] = mapped_column(String(16), default="pending")
    stop_reason: Mapped[str | None] = mapped_column(Text)
    measures_nothing: Mapped[bool] = mapped_column(default=False)
    measures_nothing_why: Mapped[str] = mapped_column(Text, default="")
    audit: Mapped[str] = mapped_column(Text, default="")
    lessons: Mapped[str] = mapped_column(Text, default="{}")


class AttemptRow(Base):
    __tablename__ = "attempts"
    __table_args__ = (Index("attempts_of_task", "task", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    task: Mapped[int] = mapped_column(ForeignKey("tasks.key"))
    round: Mapped[int]
    confirms: Mapped[bool]
    candidate_sha256: Mapped[str] = mapped_column(String(64), index=True)
    candidate_source: Mapped[str] = mapped_column(Text)
    candidate: Mapped[str] = mapped_column(Text)
    advice: Mapped[str | None] = mapped_column(Text)


class EvaluationRow(Base):
    """Evaluation of an attempt. Times in µs; `seconds` is the duration of the evaluation."""

    __tablename__ = "evaluations"

    attempt: Mapped[int] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    verdict: Mapped[str] = mapped_column(String(32), index=True)
    reason: Mapped[str] = mapped_column(Text)
    evaluation: Mapped[str] = mapped_column(Text)
    speedup_eager_median: Mapped[float | None]
    speedup_eager_low: Mapped[float | None]
    speedup_eager_high: Mapped[float | None]
    speedup_compile_median: Mapped[float | None]
    speedup_compile_low: Mapped[float | None]
    speedup_compile_high: Mapped[float | None]
    speedup_fastest_median: Mapped[float | None]
    speedup_fastest_low: Mapped[float | None]
    speedup_fastest_high: Mapped[float | None]
    own_kernel_share: Mapped[float | None]
    candidate_us: Mapped[float | None]
    seconds: Mapped[float]


class ProfileRow(Base):
    __tablename__ = "profiles"

    attempt: Mapped[int] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    profile: Mapped[str] = mapped_column(Text)


class LlmCallRow(Base):
    __tablename__ = "llm_calls"
    __table_args__ = (Index("llm_calls_of_task", "run", "task"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    task: Mapped[str | None] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(64))
    model: Mapped[str] = mapped_column(Text)
    request_sha256: Mapped[str] = mapped_column(String(64), index=True)
    request: Mapped[str] = mapped_column(Text)
    response: Mapped[str] = mapped_column(Text)
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    usd: Mapped[float | None]
    seconds: Mapped[float]
