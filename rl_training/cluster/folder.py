"""The folder that `kernelwright train verl` writes: all that a cluster needs, but for the model and verl."""

import re
from pathlib import Path

from kernelbench.errors import StorageError, UsageError
from results.encoding import record_text
from results.folder import write_atomically
from rl_training.cluster.data import rows, schema
from rl_training.cluster.host import Evaluation
from rl_training.cluster.overrides import LOOP, overrides_of
from rl_training.cluster.plan import Plan
from rl_training.curation import parquet
from rl_training.rewards.scheme import Scheme
from rl_training.tasks import Tasks
from rl_training.templating import template

TEMPLATES = Path(__file__).parent / "templates"
_PLAIN = re.compile(r"[\w./:@+-]+")  # what needs no quoting, neither in the shell nor in Hydra's grammar


def write(folder: Path, tasks: Tasks, plan: Plan, scheme: Scheme, command: str) -> list[str]:
    """Into a new folder; the names of its files. Raises UsageError, StorageError, MissingPrerequisite."""
    parquet.require()
    plan.check(len(tasks.train))
    folder = folder.absolute()
    for what, text in (("--out", str(folder)), ("--model", plan.model)):
        if not _PLAIN.fullmatch(text):
            raise UsageError(
                f"{what} {text} goes into a command line and Hydra's overrides",
                "use letters, digits and . / : @ + - _ alone",
            )
    evaluation = Evaluation(
        scheme=scheme,
        device=tasks.device,
        requests=min(4096, max(64, 2 * plan.tasks * plan.group * (1 + plan.lag))),
        hacks=str(folder / "hacks"),
    )
    _new(folder)
    own_loop = plan.own_loop
    for split, some in (("train", tasks.train), ("test", tasks.test)):
        if some:
            parquet.write(folder / f"{split}.parquet", list(rows(some, split, own_loop)), schema())
    values = {
        "plan": plan,
        "tasks": tasks,
        "groups": overrides_of(plan, bool(tasks.test)),
        "loop": LOOP,
        "command": command,
        "chips": sorted({data.target.fingerprint.chip for data in (*tasks.train, *tasks.test)}),
    }
    names = ["launch.sh", "reward.py", "README.md"]
    if own_loop:
        names += ["agent_loop.py", "agent_loop.yaml"]
    _write(folder / "evaluation.json", record_text(evaluation) + "\n")
    for name in names:
        _write(folder / name, template(name, TEMPLATES).render(**values))
    (folder / "launch.sh").chmod(0o755)
    return sorted(path.name for path in folder.iterdir())


def _new(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty", "use another --out")
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}", "use another --out") from error


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "use another --out") from error
