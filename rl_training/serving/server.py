"""Server of a policy, a separate process: transformers' or vLLM's, started, awaited and stopped."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Literal

from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite, UsageError
from kernelwright.rl_training.serving.policy import ServedPolicy, whole

Backend = Literal["transformers", "vllm"]

# Run as modules, in our own environment. Both answer GET /health once the model is loaded.
_MODULES: dict[Backend, str] = {
    "transformers": "transformers.cli.transformers",
    "vllm": "vllm.entrypoints.cli.main",
}
_NEEDS: dict[Backend, tuple[str, ...]] = {
    "transformers": ("transformers", "fastapi", "uvicorn", "openai", "accelerate"),
    "vllm": ("vllm",),
}
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM can be told are the largest of adapters
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # what listens there is asked here
_LOOK_EVERY_S = 0.2
_STOP_S = 15.0  # for answers that are being written; then it is killed


class PolicyServer:
    """Context in which the server process runs; it is always stopped at the end."""

    def __init__(
        self, policy: ServedPolicy, backend: Backend, host: str, port: int, options: Sequence[str] = ()
    ) -> None:
        """Prepare the server. `options`: the backend's own.

        Raises MissingPrerequisite, UsageError if the port is taken.
        """
        lacking = [name for name in _NEEDS[backend] if importlib.util.find_spec(name) is None]
        if lacking:
            fix = "pip install vllm" if backend == "vllm" else "pip install 'kernelwright[rl]'"
            raise MissingPrerequisite(f"the server of {backend} needs {', '.join(lacking)}", fix)
        _require_free(host, port)
        self.policy, self.backend, self.host, self.port = policy, backend, host, port
        self._options = list(options)

    @property
    def address(self) -> str:
        host = _ANYWHERE.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the server inside the block, where it answers to the name of `policy`.

        Adapters are merged for transformers, which gives `policy` a new name. Raises InfrastructureError if
        the server ends before it answers, StorageError, UsageError.
        """
        merged = self.backend == "transformers"
        with whole(self.policy) if merged else contextlib.nullcontext(self.policy) as served:
            self.policy = served
            yield from self._started()

    def _started(self) -> Iterator[None]:
        words = [sys.executable, "-m", _MODULES[self.backend], "serve", *_served(self.policy)]
        words += ["--host", self.host, "--port", str(self.port), *self._options]
        # Nothing is to be fetched: the model is all here. Ctrl-C is for us, who stop it.
        environment = {"HF_HUB_OFFLINE": "1", **os.environ}
        self._process = subprocess.Popen(words, env=environment, stdout=sys.stderr, process_group=0)
        try:
            while not self._answers():
                if self._process.poll() is not None:
                    raise self._ended("before it answered")
                time.sleep(_LOOK_EVERY_S)
            yield
        finally:
            self._stop()

    def wait(self) -> None:
        """Wait until the server ends by itself, which raises InfrastructureError."""
        self._process.wait()
        raise self._ended("by itself")

    def _ended(self, when: str) -> InfrastructureError:
        return InfrastructureError(
            f"the server ended {when}, with status {self._process.returncode}",
            "see its output above; its own options go after --",
        )

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, urllib.error.URLError):
            # No proxy stands between us and our own machine.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{self.address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        return False

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started, too
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _served(policy: ServedPolicy) -> list[str]:
    """Return the arguments that select the model. Adapters, which only vLLM takes, use the policy's name."""
    if policy.base is None:
        return [policy.name]
    most = next((rank for rank in _RANKS if rank >= policy.rank), policy.rank)
    return [
        policy.base,
        *("--tokenizer", policy.name),
        *("--enable-lora", "--max-lora-rank", str(most), "--lora-modules", f"{policy.name}={policy.name}"),
    ]


def _require_free(host: str, port: int) -> None:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except socket.gaierror as error:
        raise UsageError(
            f"invalid --host {host} ({error.strerror})", "use an address of this machine"
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}, port {port} ({error.strerror})", "use another --port"
        ) from None
