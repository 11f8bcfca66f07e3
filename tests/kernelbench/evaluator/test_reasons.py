"""What candidates write goes to terminals, databases and prompts: it is cut, and commands nothing."""

import pytest

from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied
from kernelwright.kernelbench.evaluator.refusal import Refused, printable
from kernelwright.kernelbench.records import Verdict


@pytest.mark.parametrize("text", ["\x1b[2J\x1b[H", "a\x07b\x08c", "\x9b8m", "\u202ereversed", "\ud800", "\r"])
def test_nothing_commands_a_terminal(text: str) -> None:
    for said in (printable(text), Refused(Verdict.build_error, text).reason, str(WorkerDied(text))):
        assert all(c.isprintable() or c in "\n\t" for c in said) and len(said) == len(text)


def test_messages_of_compilers_stay_as_they_are() -> None:
    text = "kernel.cpp:3:5: error: expected ‘;’ before ‘}’ token\n\t3 | x\n\t  | ^"
    assert printable(text) == text
    assert printable("one\r\ntwo") == "one\ntwo"


def test_megabytes_are_cut() -> None:
    said = Refused(Verdict.build_error, "x" * (4 << 20)).reason
    assert len(said) == 8000 and said.endswith("…")
