"""Functions of the user's, by name: `my.py:reward`, or `package.module:reward` where it can be imported."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelwright.kernelbench.errors import UsageError


def is_function(name: str) -> bool:
    """Return True for a name of that form."""
    module, colon, function = name.rpartition(":")
    return bool(module and colon) and function.isidentifier()


@cache
def function_of(name: str) -> Callable[..., Any]:
    """Return the function of a name. Raises UsageError."""
    module, _, function = name.rpartition(":")
    try:
        found = getattr(_module_of(module), function, None)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's file may raise anything
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(f"{module} cannot be imported ({why})", "fix it, or give another function") from None
    if not callable(found):
        raise UsageError(f"{module} has no function {function}", "give one that it defines, as FILE.py:NAME")
    return found


def hash_of(name: str) -> str:
    """Return the sha256 of the file of a function, so that a resumed training has the same one.

    Raises UsageError if there is no such function.
    """
    function_of(name)
    module, _, _ = name.rpartition(":")
    source = module if module.endswith(".py") else getattr(sys.modules[module], "__file__", None)
    return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""


def _module_of(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"the file {name} does not exist", "give the function as FILE.py:NAME")
    unique = f"kernelwright_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    spec.loader.exec_module(module)
    return module
