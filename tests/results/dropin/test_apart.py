"""Examinations of kernels in processes of their own: what was examined is not examined again."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.dropin import apart
from tests.helpers.dropin.exporting import NORM, SIGMOIDS


def test_a_kernel_is_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the same task and wishes; one that ended its process is tried again."""
    asked = []

    def answers(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        asked.append(json.loads(how["input"]))
        if len(asked) > 1:
            (Path(command[-1]) / "answer.json").write_text(json.dumps({"error": ["it is none", "leave it"]}))
        return subprocess.CompletedProcess(command, 1, "", "killed")

    apart._answer.cache_clear()
    monkeypatch.setattr(apart.subprocess, "run", answers)
    for winner, fresh, said, count in (
        (NORM, True, r"file:rms_norm crashed the process that called it \(killed\)", 1),
        (NORM, True, "it is none — leave it", 2),
        (NORM, True, "it is none", 2),
        (NORM, False, "it is none", 3),
        (SIGMOIDS, True, "it is none", 4),
    ):
        with pytest.raises(UsageError, match=said):
            apart.examined_apart(winner.task, winner.candidate, fresh=fresh)
        assert len(asked) == count
    apart._answer.cache_clear()
