"""Packages that tests need and that may not be installed."""

from importlib.util import find_spec

import pytest


def require(name: str, reason: str = "") -> None:
    """Skip the module that calls this unless a package is installed. It is not imported: some take seconds."""
    package = name.partition(".")[0]
    if find_spec(package) is None or find_spec(name) is None:
        pytest.skip(reason or f"{package} is not installed", allow_module_level=True)
