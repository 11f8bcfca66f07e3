"""Calls of replaced layers: how many kernels computed, how many the layer's own forward, and why."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.compiler import is_compiling

_REASONS = 50  # that are told apart for a layer; each shape outside the envelope is one
_LOCK = threading.Lock()  # of all numbers of calls
_TRACED: dict[str, dict[str, None]] = {}  # kernel -> reasons it was not traced for, "" if it was


class Calls:
    """Numbers of eager calls of a layer since it was replaced. A copy of the layer begins with none."""

    def __init__(self) -> None:
        self.by_kernel: dict[str, int] = {}
        self.by_layer: dict[str, int] = {}  # by reason

    def __deepcopy__(self, memo: object) -> "Calls":
        return Calls()

    def add(self, kernel: Any, why: str = "") -> None:
        """Count a call by the kernel, or one that it did not compute and why, which is logged once."""
        if is_compiling():
            traced(kernel.key, why)
            return
        if why:
            kernel.say(why)
        with _LOCK:
            if not why:
                self.by_kernel[kernel.name] = self.by_kernel.get(kernel.name, 0) + 1
                return
            if why not in self.by_layer and len(self.by_layer) >= _REASONS:
                why = "other reasons"
            self.by_layer[why] = self.by_layer.get(why, 0) + 1

    def so_far(self) -> "Calls":
        """Return the numbers as they are now, which no other thread changes."""
        found = Calls()
        with _LOCK:
            found.by_kernel, found.by_layer = dict(self.by_kernel), dict(self.by_layer)
        return found


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def traced(kernel: str, why: str) -> bool:
    """Note that a compiler traces a call of a kernel, or not and why; it runs while the graph is traced."""
    _TRACED.setdefault(kernel, {})[why] = None
    return True


@dataclass
class ReplacedCalls:
    """Calls of a model's layers by their names, and what was traced of each kernel in this process."""

    layers: dict[str, Calls] = field(default_factory=dict)
    traced: dict[str, tuple[str, ...]] = field(default_factory=dict)  # kernel -> reasons, see `_TRACED`

    def __str__(self) -> str:
        rows = [("layer", "by kernel", "by itself", "why")]
        for name, calls in self.layers.items():
            used = ", ".join(f"{kernel} {count}" for kernel, count in calls.by_kernel.items())
            why = "; ".join(f"{count} times: {reason}" for reason, count in calls.by_layer.items())
            rows.append((name or "the model", used or "0", str(sum(calls.by_layer.values())), why))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in rows]
        for kernel, reasons in self.traced.items():
            said = [f"without it ({why})" if why else "with it" for why in reasons]
            lines.append(f"compiled, calls not counted: {kernel} was traced {', '.join(said)}")
        return "\n".join(lines)


def usage_of(model: torch.nn.Module, kernels: Sequence[Any], parts: str) -> ReplacedCalls:
    """Return the calls of layers with one of these kernels; `parts`: the name of their snapshots."""
    traced_reasons = {each: tuple(reasons) for each, reasons in list(_TRACED.items())}
    found = ReplacedCalls(
        traced={each.name: traced_reasons[each.key] for each in kernels if each.key in traced_reasons}
    )
    for name, layer in model.named_modules():
        snapshot = vars(layer).get(parts)
        if snapshot is not None and any(own is each for own in snapshot.kernels for each in kernels):
            found.layers[name] = snapshot.calls.so_far()
    return found
