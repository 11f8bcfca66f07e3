"""State that a model keeps between calls: its buffers, and its own attributes.

Every run of a reference begins with the same, so that all of them are runs of one function.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kernelwright.kernelbench.evaluator.reference.task_format import TaskFault

_OF_MODULES = set(vars(nn.Module())) - {"training"}  # torch's own attributes of a module


class State:
    """Snapshot of a model's state."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # A scripted module keeps both where Python does not reach; its buffers are kept by value.
        modules = (m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule))
        self._attributes = [(m, _own(m), dict(m._buffers)) for m in modules]
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        for _, value in named_state(model):
            if isinstance(value, torch.Generator):
                self._generators.append((value, value.get_state()))
            else:
                self._kept[id(value)] = value, value.detach().clone()
        self._parameters = {name: (p, p._version) for name, p in model.named_parameters()}

    def restore(self) -> None:
        for module, attributes, buffers in self._attributes:
            for name in _own(module, copied=False):
                if name not in attributes:
                    delattr(module, name)
            vars(module).update({name: _copied(value) for name, value in attributes.items()})
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for tensor, value in self._kept.values():  # batch norm's operator changes them uncounted
                tensor.copy_(value)
        for generator, state in self._generators:
            generator.set_state(state)

    def changed(self) -> list[str]:
        """Names of what differs now."""
        now = {id(value): name for name, value in named_state(self._model)}
        names = [now[key] for key, kept in self._kept.items() if key in now and not identical(*kept)]
        for module, attributes, buffers in self._attributes:
            where = next(name for name, each in self._model.named_modules() if each is module)
            own = _own(module, copied=False)
            moved = [n for n in {**own, **attributes} if not _alike(own.get(n), attributes.get(n))]
            moved += [n for n, value in module._buffers.items() if buffers.get(n) is not value]
            names += [f"{where}.{name}" if where else name for name in moved]
        return list(dict.fromkeys(names))

    def changed_parameters(self) -> list[str]:
        return [name for name, (p, version) in self._parameters.items() if p._version != version]

    def tensors(self) -> list[torch.Tensor]:
        """Buffers and plain tensors."""
        return [tensor for tensor, _ in self._kept.values()]


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of the model, its generators and plain tensors; views, which deepcopy refuses, too."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in _own(module, copied=False).values():
            for _, leaf in _leaves(value):
                if isinstance(leaf, torch.Generator):
                    memo[id(leaf)] = leaf.clone_state()
                elif not isinstance(leaf, nn.Parameter):
                    memo[id(leaf)] = leaf.data.clone()
    return copy.deepcopy(model, memo)


def named_state(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Buffers, and tensors and generators in the modules' own attributes, lists and dicts, by name.

    Without what is a parameter's memory, as an LSTM's list of its weights. Raises TaskFault where one is not
    dense.
    """
    trained = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    for prefix, module in model.named_modules():
        for name, value in {**module._buffers, **_own(module, copied=False)}.items():
            where = f"{prefix}.{name}" if prefix else name
            for inner, leaf in _leaves(value):
                if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
                    raise TaskFault(
                        f"keeps a tensor that is not dense ({where}{inner}: {leaf.layout})", "make it dense"
                    )
                if isinstance(leaf, torch.Generator) or leaf.untyped_storage().data_ptr() not in trained:
                    yield f"{where}{inner}", leaf


def map_plain_tensors(model: nn.Module, change: Any) -> None:
    """Replace the tensors that modules have as plain attributes, in lists too, by `change` of them."""
    for module in model.modules():
        for name, value in _own(module, copied=False).items():
            vars(module)[name] = _mapped(value, change)


def _own(module: nn.Module, copied: bool = True) -> dict[str, Any]:
    own = {name: value for name, value in vars(module).items() if name not in _OF_MODULES}
    return {name: _copied(value) for name, value in own.items()} if copied else own


def _copied(value: Any) -> Any:
    """Containers again, what is in them as it is."""
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    if type(value) is list:
        return [_copied(each) for each in value]
    return set(value) if type(value) is set else value


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if isinstance(value, nn.Parameter) else change(value)
    if type(value) is dict:
        return {key: _mapped(each, change) for key, each in value.items()}
    return type(value)(_mapped(each, change) for each in value) if type(value) in (list, tuple) else value


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor | torch.Generator):
        yield "", value
    elif type(value) in (list, tuple):
        for place, each in enumerate(value):
            yield from ((f"[{place}]{inner}", leaf) for inner, leaf in _leaves(each))
    elif type(value) is dict:
        for key, each in value.items():
            yield from ((f"[{key!r}]{inner}", leaf) for inner, leaf in _leaves(each))


def _alike(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if type(left) is list:
        return len(left) == len(right) and all(map(_alike, left, right))
    if type(left) is dict:
        return left.keys() == right.keys() and all(_alike(left[key], right[key]) for key in left)
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001 - what cannot be compared is another one
        return False


def identical(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return True if two tensors have the same values, NaN being itself."""
    return left.shape == right.shape and bool(((left == right) | ((left != left) & (right != right))).all())
