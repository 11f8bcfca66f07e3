"""Integrity of a package's files: they must be those that were exported."""

import hashlib
import json
from pathlib import Path


def verify(package: Path, metadata_sha256: str) -> None:
    """Raise ImportError if `metadata.json`, or a file that it lists with its SHA-256, has changed."""
    metadata = package / "metadata.json"
    if _sha256(metadata) != metadata_sha256:
        raise ImportError(_said(metadata))
    for name, wanted in json.loads(metadata.read_text())["files"].items():
        if _sha256(package / name) != wanted:
            raise ImportError(_said(package / name))


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _said(path: Path) -> str:
    return f"{path} differs from the exported file: reinstall the package"
