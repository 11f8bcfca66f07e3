"""Format of a task: what its functions may return, and what its Model is called with."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

_CONSTANTS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size, slice)
_INPUTS = "write `return [x, y]`: forward's arguments in their order"
_INIT = "write `return [a, b]`: Model's arguments in their order"


class TaskFault(Exception):  # noqa: N818 - what it is
    """A task that cannot be evaluated: `str()` goes on after "the reference of TASK"; `fix`: what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def constructor_inputs(given: Any, model: Any) -> list[Any]:
    """Return the arguments for Model, in order, from a list, a dict of names, or `[[], {…}]` (KernelBook).

    Raises TaskFault.
    """
    if isinstance(given, list | tuple) and len(given) == 2:
        first, second = given
        if isinstance(first, list | tuple) and not first and _names(second, model):
            given = second
    if isinstance(given, dict):
        return _in_order(given, model, "get_init_inputs", _INIT)
    if not isinstance(given, list | tuple):
        raise TaskFault(f"has a get_init_inputs that gives a {type(given).__name__}", _INIT)
    return list(given)


def inputs_of(given: Any, model: nn.Module) -> list[Any]:
    """Return the arguments for forward, in order: of a list, or of a dict of names. Raises TaskFault."""
    if isinstance(given, dict):
        return _in_order(given, model.forward, "get_inputs", _INPUTS)
    if not isinstance(given, list | tuple):
        raise TaskFault(f"has a get_inputs that gives a {type(given).__name__}, not a list", _INPUTS)
    return list(given)


def constants_of(leaves: Sequence[Any]) -> list[Any]:
    """Return the inputs that are no tensors, None in the places of tensors. Raises TaskFault."""
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *_CONSTANTS)):
            kind = type(leaf).__name__
            raise TaskFault(
                f"has a get_inputs that gives a {kind}",
                "give tensors, numbers and strings, in lists, tuples and dicts; make the object in forward",
            )
    return [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


# Whether it is a tensor; the value where not; whether it is a tensor that requires gradients.
Leaf: TypeAlias = tuple[bool, Any, bool]


def filled(leaves: Sequence[Leaf], tensors: Iterable[torch.Tensor]) -> list[Any]:
    """Flat arguments of forward. Tensors that need gradients are leaves of a graph of their own."""
    rest = iter(tensors)
    found = []
    for is_tensor, value, needs_gradient in leaves:
        tensor = next(rest) if is_tensor else value
        found.append(tensor.detach().requires_grad_() if needs_gradient else tensor)
    return found


def described(arguments: Sequence[Any]) -> str:
    """Arguments in words: "float32[64, 128], 2.5"."""
    return ", ".join(_described(argument) for argument in arguments)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple) and any(
        isinstance(x, torch.Tensor) for x in pytree.tree_leaves(value)
    ):
        return f"[{described(value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_described(each)}' for key, each in value.items())}}}"
    text = type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _names(given: Any, function: Any) -> bool:
    """Return True for a dict of some of the function's arguments."""
    if not isinstance(given, dict):
        return False
    try:
        inspect.signature(function).bind(**given)
    except (TypeError, ValueError):
        return False
    return True


def _in_order(given: dict[Any, Any], function: Any, name: str, fix: str) -> list[Any]:
    try:
        bound = inspect.signature(function).bind(**given)
    except (TypeError, ValueError) as error:
        raise TaskFault(f"has a {name} that gives a dict which does not fit: {error}", fix) from None
    bound.apply_defaults()
    if bound.kwargs:
        raise TaskFault(f"has a {name} that gives arguments by name only ({', '.join(bound.kwargs)})", fix)
    return list(bound.args)


def for_device(source: str, device: torch.device) -> str:
    """Return the source of a task for a device: on a CPU, "cuda" and `.cuda()` in it mean the CPU."""
    if device.type == "cuda" or "cuda" not in source:
        return source
    lines = source.encode().splitlines(keepends=True)  # where Python's parser does: str splits at more
    # From the last to the first, so that places stay what they are.
    for row, start, end_row, end, text in sorted(_of_a_gpu(ast.parse(source)), reverse=True):
        before, after = lines[row - 1][:start], lines[end_row - 1][end:]
        lines[row - 1 : end_row] = [before + text + b"\n" * (end_row - row) + after]
    return b"".join(lines).decode()


def _names_a_gpu(text: ast.Constant | ast.JoinedStr) -> bool:
    """ "cuda", "cuda:0" and f"cuda:{rank}"."""
    if isinstance(text, ast.Constant):
        return isinstance(text.value, str) and re.fullmatch(r"cuda(:\d+)?", text.value) is not None
    match text.values:
        case [ast.Constant(value="cuda:"), ast.FormattedValue()]:
            return True
    return False


def _is_device(node: ast.expr) -> bool:
    """Return whether a side of a comparison is a device: that of `x.device == torch.device("cuda")`."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.device", "device")


def _of_a_gpu(node: ast.AST) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Locations of the words that mean a GPU, and their replacements."""
    if isinstance(node, ast.Compare):
        for side in (node.left, *node.comparators):
            if not isinstance(side, ast.Constant | ast.JoinedStr) and not _is_device(side):
                yield from _of_a_gpu(side)  # of `torch.rand(n, device="cuda") < 0.5`, say
        return
    if isinstance(node, ast.Constant | ast.JoinedStr):
        if _names_a_gpu(node):
            assert node.end_lineno is not None and node.end_col_offset is not None
            yield node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, b'"cpu"'
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
        word = node.func
        assert word.end_lineno is not None and word.end_col_offset is not None
        assert node.end_lineno is not None and node.end_col_offset is not None
        yield (
            word.end_lineno,
            word.end_col_offset - len("cuda"),
            node.end_lineno,
            node.end_col_offset,
            b"cpu()",
        )
        yield from _of_a_gpu(word.value)
        return
    for child in ast.iter_child_nodes(node):
        yield from _of_a_gpu(child)
