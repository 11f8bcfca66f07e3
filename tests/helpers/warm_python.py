"""Scripts in Python processes of their own, with torch and pytest imported already, which takes seconds each time.

    warm_python(["-c", "import torch; print(torch.ones(1))"], cwd=folder, env={"PATH": "/usr/bin"})

One process without kernelwright imports both and forks for each script: `python -P -W ignore` with `-c`, `-m` or a
file. A fork sees the folders of PYTHONPATH first, as a new process would.
"""

import atexit
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType

TIMEOUT_S = 280


def warm_python(words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script. Raises subprocess.TimeoutExpired."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with TemporaryFile("w+") as output:
        asked = {"words": list(words), "cwd": str(cwd), "env": dict(env)}
        asked["output"] = f"/proc/{os.getpid()}/fd/{output.fileno()}"
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], TIMEOUT_S)[0]:
            _end(server)
            _server.cache_clear()
            raise subprocess.TimeoutExpired(list(words), TIMEOUT_S)
        code = int(server.stdout.readline())
        output.seek(0)
        return subprocess.CompletedProcess(list(words), code, output.read(), "")


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-P", __file__],
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _serve() -> None:
    import pytest  # noqa: F401
    import torch  # noqa: F401

    assert "kernelwright" not in sys.modules
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(**json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(words: list[str], cwd: str, env: dict[str, str], output: str) -> None:
    """Run a script in this process and end it."""
    code: object = 0
    try:
        with Path(output).open("w") as file, Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.path[:0] = env.get("PYTHONPATH", "").split(":")
        how, *rest = words
        if how == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif how == "-c":
            sys.argv = ["-c", *rest[1:]]
            sys.modules["__main__"] = script = ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), vars(script))
        else:
            sys.argv = words
            runpy.run_path(how, run_name="__main__")  # in a module of its own, as with -m
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - a script may raise anything
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))  # type: ignore[call-overload]


if __name__ == "__main__":
    _serve()
