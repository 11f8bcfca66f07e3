"""The package that `kernelwright train environment` writes."""

import json
from pathlib import Path

from pydantic import JsonValue

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.records import Record
from kernelwright.kernelbench.version import kernelwright_version
from kernelwright.rl_training import new_folder
from kernelwright.rl_training.other_trainers.rows import row
from kernelwright.rl_training.rewards.scheme import SCHEMES, Scheme
from kernelwright.rl_training.rewards.terms import Custom
from kernelwright.rl_training.tasks import Tasks
from kernelwright.rl_training.templating import template

PACKAGE = "kernelwright_env"
_FILES = Path(__file__).parent / PACKAGE
_TEMPLATES = Path(__file__).parent / "templates"
_NAMES = {  # template -> where it is written
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "openenv.yaml": "openenv.yaml",
    "Dockerfile": "Dockerfile",
    "app.py": "server/app.py",
    "nemo_gym_app.py": "resources_servers/kernelwright/app.py",
    "nemo_gym.yaml": "resources_servers/kernelwright/configs/kernelwright.yaml",
    "nemo_gym_requirements.txt": "resources_servers/kernelwright/requirements.txt",
}


class EnvironmentSettings(Record):
    """Settings of the package: its file settings.json."""

    server: str
    scheme: str | dict[str, JsonValue]
    turns: int
    effort: str | None = None


def scheme_sent(scheme: Scheme) -> str | dict[str, JsonValue]:
    """Return a scheme as a server of evaluations takes it. Raises UsageError for one with own functions."""
    if any(isinstance(term, Custom) for term in scheme.terms):
        raise UsageError(
            "a server of evaluations runs no function of yours",
            "use a scheme without a custom term, and compute that term in the trainer",
        )
    name = next((name for name, known in SCHEMES.items() if known == scheme), None)
    return name if name is not None else scheme.model_dump(mode="json")


def write(folder: Path, tasks: Tasks, settings: EnvironmentSettings, command: str) -> list[str]:
    """Write the package into a new folder; return its files. Raises UsageError, StorageError."""
    new_folder.begin(folder)
    counts = {}
    try:
        for name in (f"{PACKAGE}/tasks", "server", "resources_servers/kernelwright/configs"):
            (folder / name).mkdir(parents=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}", "use another --out") from error
    for split, some in (("train", tasks.train), ("test", tasks.test)):
        counts[split] = len(some)
        if some:
            lines = "".join(json.dumps(row(data)) + "\n" for data in some)
            new_folder.write(folder / PACKAGE / "tasks" / f"{split}.jsonl", lines)
    for path in sorted(_FILES.glob("*.py")):
        new_folder.write(folder / PACKAGE / path.name, path.read_text(encoding="utf-8"))
    new_folder.write(folder / PACKAGE / "settings.json", settings.model_dump_json(indent=2) + "\n")
    values = {
        "settings": settings,
        "tasks": tasks,
        "counts": counts,
        "command": command,
        "version": kernelwright_version(),
        "package": PACKAGE,
    }
    for name, place in _NAMES.items():
        new_folder.write(folder / place, template(name, _TEMPLATES).render(**values))
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
