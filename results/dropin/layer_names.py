"""Names of layers' classes and of their parameters, as `--layer` and `--rename` give them."""

import difflib
import inspect
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.dropin.format import Format


def renamed(layers: Sequence[str], renames: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return for each class the layer's names of parameters, by the task's.

    `renames`: NAME=NAME for all classes, or CLASS:NAME=NAME for one. Raises UsageError.

    >>> renamed(["LlamaRMSNorm", "transformers.T5LayerNorm"], ["T5LayerNorm:weight=gain"])
    {'LlamaRMSNorm': {}, 'transformers.T5LayerNorm': {'weight': 'gain'}}
    """
    found: dict[str, dict[str, str]] = {layer: {} for layer in layers}
    for text in renames:
        of, _, pair = text.rpartition(":")
        own, _, other = pair.partition("=")
        if not (own and other):
            raise UsageError(f"invalid --rename {text}", "use NAME=NAME, such as --rename weight=gamma")
        meant = [layer for layer in layers if not of or of in (layer, layer.rpartition(".")[2])]
        if not meant:
            raise UsageError(f"--rename {text} is for no --layer", f"add --layer {of or 'CLASS'}")
        for layer in meant:
            found[layer][own] = other
    return found


def check_layers(layers: Sequence[str], form: Format) -> None:
    """Raise UsageError for a class that its module does not have, if that can be imported."""
    for layer in layers:
        module, _, name = layer.rpartition(".")
        if form.module and not module:
            raise UsageError(
                f"invalid --layer {layer}: its module is missing",
                "use --layer torchtitan.models.common.nn_modules.RMSNorm, for example",
            )
        if not module or (found := _imported(module)) is None:
            continue
        if not inspect.isclass(vars(found).get(name)):  # Megatron's build layers and are none themselves
            kinds = [each for each, value in vars(found).items() if inspect.isclass(value)]
            close = difflib.get_close_matches(name, kinds, 1) or sorted(kinds)[:5] or ["another module"]
            raise UsageError(f"{module} has no layer {name}", f"use {', '.join(close)}")


def check_functions(paths: Sequence[str]) -> None:
    """Raise UsageError for a function that its module does not have, if that can be imported."""
    for path in paths:
        module, _, name = path.rpartition(".")
        if not module:
            raise UsageError(
                f"invalid --function {path}: its module is missing", "use --function module.function"
            )
        if (found := _imported(module)) is not None and not callable(vars(found).get(name)):
            functions = [each for each, value in vars(found).items() if callable(value)]
            close = difflib.get_close_matches(name, functions, 1) or ["another module"]
            raise UsageError(f"{module} has no function {name}", f"use {close[0]}")


def _imported(module: str) -> ModuleType | None:
    try:
        return import_module(module)
    except Exception:  # noqa: BLE001 - it is not here, or cannot be imported without its model
        return None
