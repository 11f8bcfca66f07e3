import stat
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty build cache for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


@pytest.fixture
def wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes CXX a shell script that runs `body`, then g++; returns its folder, which is $D in `body`."""

    def make(body: str) -> Path:
        folder = tmp_path / "compiler"
        folder.mkdir()
        script = folder / "g++-wrapped"
        script.write_text(f'#!/bin/sh\nD={folder}\n{body}\nexec g++ "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(script))
        return folder

    return make
