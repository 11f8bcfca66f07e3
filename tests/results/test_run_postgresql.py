"""The same database in a PostgreSQL server: KERNELWRIGHT_TEST_POSTGRESQL names one that may be written.

KERNELWRIGHT_TEST_POSTGRESQL=postgresql+psycopg://postgres@localhost/test pytest tests/results
"""

import os

import pytest

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Verdict
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.summary import summarize
from tests.helpers.results import run_factory
from tests.helpers.results.run_factory import llm_call, new_run, task

URL = os.environ.get("KERNELWRIGHT_TEST_POSTGRESQL", "")
pytestmark = pytest.mark.skipif(not URL, reason="KERNELWRIGHT_TEST_POSTGRESQL names no server")


def test_a_run_is_kept_and_read_back() -> None:
    with new_run(URL) as database:
        run_factory.record_example(database)
        database.record_llm_call(llm_call(None, 0.5))
        other = task("other")
        database.add_task(other)
        run_factory.attempt(database, other, 1, Verdict.build_error, reason="a \0 in the compiler's output")
    with RunDatabase.open(URL, run_id=database.run_id, read_only=True) as reader:
        assert reader.attempts(other.id)[0].evaluation.reason == "a \0 in the compiler's output"
        summary = summarize(reader)
    assert (summary.correct, summary.total, summary.usd) == (4, 7, 0.5)


def test_an_unreachable_server_is_named_without_the_password() -> None:
    with pytest.raises(StorageError) as refused:
        RunDatabase.open("postgresql+psycopg://me:secret@127.0.0.1:9/nothing")
    assert "127.0.0.1:9" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
