"""`kernelwright train push`, with huggingface_hub, to a server that speaks the Hub's protocol."""

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub")


class FakeHub(BaseHTTPRequestHandler):
    """Creates repositories and takes commits; `files` has what was committed, `asked` all requests."""

    files: dict[str, bytes]
    asked: list[str]
    created: list[dict[str, Any]]
    token = "hf_right"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append(self.path)
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            return self._answer(401, {"error": "Invalid credentials"})
        if self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            return self._answer(200, {"url": f"http://{self.headers['Host']}/datasets/me/kernels"})
        if self.path == "/api/validate-yaml":  # of the card
            return self._answer(200, {"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            mode = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return self._answer(200, {"files": [{"path": file["path"], **mode} for file in files]})
        if "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            where = f"http://{self.headers['Host']}/datasets/me/kernels/commit/{'c' * 40}"
            return self._answer(200, {"commitUrl": where, "commitOid": "c" * 40, "hookOutput": ""})
        return self._answer(404, {"error": f"unknown route {self.path}"})

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self._answer(200, {"id": "o/n", "sha": "a" * 40, "siblings": []})

    def _answer(self, status: int, content: object) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[type[FakeHub], str]]:
    handler = type("FakeHubHere", (FakeHub,), {"files": {}, "asked": [], "created": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield handler, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "tasks").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# Data\n")
    (folder / "DATASHEET.md").write_text("# Datasheet\n")
    (folder / "tasks" / "train.parquet").write_bytes(b"rows")
    (folder / ".lock").write_text("")
    return folder


def pushed(url: str, home: Path, *words: object, token: str = "hf_right") -> subprocess.CompletedProcess[str]:
    """Push in a process of its own: huggingface_hub reads its endpoint when it is imported."""
    import os

    environment = {**os.environ, "HF_ENDPOINT": url, "HF_TOKEN": token, "HF_HOME": str(home)}
    asked = [sys.executable, "-m", "kernelwright", "train", "push", *map(str, words)]
    return subprocess.run(asked, capture_output=True, text=True, env=environment, timeout=300)


def test_a_data_set_is_pushed_with_its_card(
    hub: tuple[type[FakeHub], str], data: Path, tmp_path: Path
) -> None:
    handler, url = hub
    found = pushed(url, tmp_path, data, "me/kernels", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == {
        "schema": 1,
        "kind": "dataset",
        "repository": "me/kernels",
        "commit": "c" * 40,
    }
    created = handler.created[0]  # as older and newer releases say it
    assert created["type"] == "dataset" and (created.get("visibility") == "private" or created.get("private"))
    assert handler.files.keys() == {"README.md", "DATASHEET.md", "tasks/train.parquet"}
    assert handler.files["tasks/train.parquet"] == b"rows"


def test_a_wrong_token_is_said_in_a_line(hub: tuple[type[FakeHub], str], data: Path, tmp_path: Path) -> None:
    found = pushed(hub[1], tmp_path, data, "me/kernels", token="hf_wrong")
    assert found.returncode == 2 and not hub[0].files
    (line,) = found.stderr.splitlines()
    assert "cannot be written" in line and "HF_TOKEN" in line


@pytest.mark.parametrize("lacks", ["README.md", "DATASHEET.md"])
def test_what_has_no_card_or_is_no_data_set_is_refused(data: Path, tmp_path: Path, lacks: str) -> None:
    from kernelwright.kernelbench.errors import UsageError
    from kernelwright.rl_training.pushing import kind_of

    (data / lacks).unlink()
    with pytest.raises(UsageError, match="no card" if lacks == "README.md" else "neither a data set nor"):
        kind_of(data)


def test_a_policy_is_a_model(tmp_path: Path) -> None:
    from kernelwright.rl_training.pushing import kind_of

    (tmp_path / "README.md").write_text("# Policy\n")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert kind_of(tmp_path) == "model"
