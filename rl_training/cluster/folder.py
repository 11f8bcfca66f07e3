"""The folder that `kernelwright train verl` writes: everything a cluster needs but the model and verl."""

import re
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.store.encoding import record_text
from kernelwright.rl_training import new_folder
from kernelwright.rl_training.cluster.data import rows, schema
from kernelwright.rl_training.cluster.host import EvaluationSettings
from kernelwright.rl_training.cluster.overrides import LOOP, overrides_of
from kernelwright.rl_training.cluster.plan import ClusterPlan
from kernelwright.rl_training.curation import parquet
from kernelwright.rl_training.rewards.scheme import Scheme
from kernelwright.rl_training.tasks import Tasks
from kernelwright.rl_training.templating import template

TEMPLATES = Path(__file__).parent / "templates"
_PLAIN = re.compile(r"[\w./:@+-]+")  # what needs no quoting, neither in the shell nor in Hydra's grammar


def write(folder: Path, tasks: Tasks, plan: ClusterPlan, scheme: Scheme, command: str) -> list[str]:
    """Write the files into a new folder; return their names.

    Raises UsageError, StorageError, MissingPrerequisite.
    """
    parquet.require()
    plan.check(len(tasks.train))
    folder = folder.absolute()
    for what, text in (("--out", str(folder)), ("--model", plan.model)):
        if not _PLAIN.fullmatch(text):
            raise UsageError(
                f"invalid {what} {text}: it is used in a command line and Hydra's overrides",
                "use only letters, digits and . / : @ + - _",
            )
    evaluation = EvaluationSettings(
        scheme=scheme,
        device=tasks.device,
        requests=min(4096, max(64, 2 * plan.tasks * plan.group * (1 + plan.lag))),
        hacks=str(folder / "hacks"),
    )
    new_folder.begin(folder)
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
    new_folder.write(folder / "evaluation.json", record_text(evaluation) + "\n")
    for name in names:
        new_folder.write(folder / name, template(name, TEMPLATES).render(**values))
    (folder / "launch.sh").chmod(0o755)
    return sorted(path.name for path in folder.iterdir())
