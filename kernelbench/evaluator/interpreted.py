"""Triton in its interpreter, where there is no GPU."""

import importlib
import os
from typing import Any


def settle_autotuning(source: str) -> None:
    """Have autotuned kernels of `source` take their first configuration: there is nothing to time others on.

    Nothing is changed where kernels are not interpreted, or there is no Triton.
    """
    if os.environ.get("TRITON_INTERPRET") != "1" or "autotune" not in source:
        return
    try:
        autotuner: Any = importlib.import_module("triton.runtime.autotuner")
    except ImportError:
        return
    autotuner.Autotuner._bench = lambda *_, **__: [1.0, 1.0, 1.0]  # min takes the first of equals
