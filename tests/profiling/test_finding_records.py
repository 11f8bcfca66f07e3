"""Findings as run databases hold them."""

from kernelwright.profiling.records import Finding


def test_a_finding_of_an_older_database_is_read() -> None:
    """The field `fix` was called `mend`."""
    old = {"kind": "memory", "says": "It waits.", "mend": "Read less.", "cites": {}, "most_gain": None}
    found = Finding.model_validate(old)
    assert found.fix == "Read less."
    assert Finding.model_validate_json(found.model_dump_json()) == found
