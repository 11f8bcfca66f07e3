"""The folder of a policy of schedules."""

from pathlib import Path

from kernelwright.kernelbench.errors import UsageError

MODEL_TYPE = "kernelwright_schedules"  # in its config.json


def require_policy(folder: Path) -> None:
    """Raise UsageError if a folder holds no policy of schedules."""
    config = folder / "config.json"
    if not config.is_file() or MODEL_TYPE not in config.read_text(encoding="utf-8"):
        raise UsageError(
            f"{folder} holds no policy of schedules",
            "give a folder such as DIR/seed-0/rl/policy of `kernelwright train demo --space wide --out DIR`",
        )
