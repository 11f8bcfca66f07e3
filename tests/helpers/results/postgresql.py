"""A PostgreSQL server of the tests' own, and databases in it that are empty.

KERNELWRIGHT_TEST_POSTGRESQL=postgresql+psycopg://user@host/name names another, which may be written to.
"""

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

_GIVEN = "KERNELWRIGHT_TEST_POSTGRESQL"
_QUICK = ("fsync=off", "shared_buffers=16MB", "max_connections=60", "listen_addresses=")


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a server. Skips the test where there is none to start."""
    pytest.importorskip("psycopg", reason="PostgreSQL's driver psycopg is not installed")
    if given := os.environ.get(_GIVEN):
        yield given
        return
    initdb = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if initdb is None:
        pytest.skip(f"no initdb here (Debian: postgresql), and {_GIVEN} names no server")
    programs = Path(initdb).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="kw-pg-", dir="/tmp"))  # a socket's path must be short
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None  # PostgreSQL refuses root
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user is not None else {}
    data, log = folder / "data", (folder / "log").open("wb")
    try:
        words = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(words, check=True, stdout=log, stderr=log, cwd=folder, **as_user)
        words = [programs / "postgres", "-D", data, "-k", folder]
        words += [word for setting in _QUICK for word in ("-c", setting)]
        running = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder, **as_user)
        url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        try:
            _await(url, running)
            yield url
        finally:
            running.terminate()
            running.wait()
    finally:
        log.close()
        shutil.rmtree(folder)


@contextmanager
def empty_databases() -> Iterator[Callable[[], str]]:
    """Yield a function that returns the URL of an empty database: a schema of its own in one server."""
    numbers = itertools.count(1)
    with server() as url:
        engine = create_engine(url)

        def made() -> str:
            name = f"test_{os.getpid()}_{next(numbers)}"
            with engine.begin() as connection:
                connection.execute(text(f"CREATE SCHEMA {name}"))
            found = make_url(url).update_query_dict({"options": f"-csearch_path={name}"})
            return found.render_as_string(hide_password=False)

        yield made
        engine.dispose()


def _await(url: str, running: "subprocess.Popen[bytes]") -> None:
    engine, until = create_engine(url), time.monotonic() + 60
    while True:
        try:
            engine.connect().close()
        except OperationalError:
            assert running.poll() is None and time.monotonic() < until, "PostgreSQL does not start"
            time.sleep(0.1)
        else:
            return engine.dispose()
