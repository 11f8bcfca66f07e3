"""Limits within which a forward does the same for all sizes: what `torch.export` assumes of them.

`if x.shape[0] < 3000:` is taken one way in a trace of 17 rows, and export notes that there are fewer than
3000. `x + self.table[:x.shape[1]]` has it note how long the table is.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.kernelbench.free_sizes.size import Limits


def limits_of(
    model: nn.Module, inputs: Sequence[Any], arguments: Sequence[str], free: Mapping[str, Mapping[int, str]]
) -> Limits:
    """Return the least and the most of free sizes that have any.

    `free`: lengths as polynomials of their names, "batch_size * 4", by argument and axis. Raises Untraceable
    where a forward does otherwise for sizes that are no range.
    """
    automatic: Any = Dim.AUTO
    shapes = [dict.fromkeys(free.get(name, ()), automatic) or None for name in arguments]
    try:
        with torch.no_grad():
            exported = torch.export.export(model, tuple(inputs), dynamic_shapes=tuple(shapes), strict=False)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Untraceable(f"torch.export, of free sizes: {reason}") from error
    lengths: dict[Any, Any] = {}  # of torch's symbols, in names of sizes
    guards: dict[Any, None] = {}
    for name, value in zip(arguments, _values(exported), strict=True):
        for axis, size in free.get(name, {}).items():
            length = value.shape[axis]
            if isinstance(length, int):
                raise Untraceable(f"forward does something else where {size} is not {length}")
            meant = _polynomial(size)
            lengths |= {each: meant for each in (length.node.expr, length.node._expr) if each.is_Symbol}
            guards |= dict.fromkeys(guard.expr for guard in length.node.shape_env.guards)
    found: dict[str, tuple[int, int | None]] = {}
    names = {symbol for meant in lengths.values() for symbol in meant.free_symbols}
    meant_guards = (guard.subs(lengths) for guard in guards)
    for each in (part for guard in meant_guards for part in sympy.And.make_args(guard)):
        size, least, most = _range(each, names)
        if size:
            known = found.get(size, (1, None))
            mosts = [end for end in (most, known[1]) if end is not None]
            found[size] = max(least, known[0]), min(mosts, default=None)
    return found


def _values(exported: ExportedProgram) -> Iterator[Any]:
    """Yield what stands for the arguments of the forward."""
    users = set(exported.graph_signature.user_inputs)
    for node in exported.graph.nodes:
        if node.op == "placeholder" and (node.name in users or not isinstance(node.meta.get("val"), Tensor)):
            yield node.meta.get("val")


def _polynomial(text: str) -> Any:
    """Return the length that a text says, of symbols for the names in it."""
    names = re.findall(r"[^\W\d]\w*", text)
    symbols = {name: sympy.Symbol(name, integer=True, positive=True) for name in names}
    return eval(text, {"__builtins__": {}}, symbols)


def _range(guard: Any, names: Collection[Any]) -> tuple[str, int, int | None]:
    """Return the size that an assumption is of, its least and its most; no size where it says nothing.

    Equal lengths of several inputs say nothing new, and neither does a size that is not 1: then nothing is
    broadcast.
    """
    if guard == True:  # noqa: E712 - sympy's own
        return "", 1, None
    if not isinstance(guard, sympy.core.relational.Relational):
        raise Untraceable(f"forward does something else unless {guard}")
    one, other = guard.args
    kind = guard.rel_op
    if kind == "==" and one.is_Symbol and other.is_Symbol:
        return "", 1, None
    if kind == "!=" and other == 1:
        return "", 1, None
    if other.is_Symbol and one.is_Integer:
        one, other, kind = other, one, {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(kind, kind)
    if one in names and other.is_Integer and kind in ("<", "<="):
        return one.name, 1, int(other) - (kind == "<")
    if one in names and other.is_Integer and kind in (">", ">="):
        return one.name, int(other) + (kind == ">"), None
    raise Untraceable(f"forward does something else unless {guard}")
