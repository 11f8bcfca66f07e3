"""Trackers that a run can be given by name, each of which needs packages of its own."""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from kernelwright.agent.tracking.dashboards import Dashboard, History
from kernelwright.agent.tracking.events import EVENTS, EventsFile
from kernelwright.agent.tracking.tracker import Tracker
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.results.store.database import RunDatabase

TrackerName = Literal["otel", "trackio", "wandb"]
_NEEDS = {
    "otel": ("opentelemetry.exporter.otlp.proto.http", "kernelwright[otel]"),
    "trackio": ("trackio", "trackio"),
    "wandb": ("wandb", "wandb"),
}
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def check_tracker(name: TrackerName) -> None:
    """Check that a tracker can be begun. Raises MissingPrerequisite, UsageError."""
    module, package = _NEEDS[name]
    if not _is_installed(module):
        raise MissingPrerequisite(
            f"--tracking {name} needs a package that is missing", f"pip install '{package}'"
        )
    for variable in _PROTOCOLS if name == "otel" else ():
        if os.environ.get(variable, "http/protobuf") != "http/protobuf":
            raise UsageError(
                f"{variable}={os.environ[variable]} is not supported",
                "use http/protobuf, mostly at port 4318",
            )


def trackers(
    names: tuple[TrackerName, ...],
    database: RunDatabase,
    folder: Path,
    address: str | None,
    say: Callable[[str], None],
) -> dict[str, Callable[[], Tracker]]:
    """Return what begins each tracker of a run, the file of events first. `address`: of its models."""
    found: dict[str, Callable[[], Tracker]] = {EVENTS: partial(EventsFile, folder)}
    for name in dict.fromkeys(names):
        if name == "otel":
            found[name] = partial(_otel, database, folder.resolve().name, address, say)
        else:
            found[name] = partial(_dashboard, name, History.of(database), folder)
    return found


def _otel(database: RunDatabase, name: str, address: str | None, say: Callable[[str], None]) -> Tracker:
    from kernelwright.agent.tracking.otel import OpenTelemetry

    return OpenTelemetry(database, name, address, say)


def _dashboard(name: Literal["trackio", "wandb"], history: History, folder: Path) -> Tracker:
    return Dashboard(name, history, folder)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False
