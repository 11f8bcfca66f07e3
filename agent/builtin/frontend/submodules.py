"""Submodules that cannot be traced are left to torch: each call of one is a single operator of the graph.

What a submodule is called with and what it gives is recorded in real runs, on inputs of several kinds, so
that branches on data are taken both ways. Of a submodule that fails, those that it calls are asked first: the
smallest are left out.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from kernelwright.agent.builtin.frontend.decompose import table
from kernelwright.agent.builtin.frontend.export import export, meta_of, quoted
from kernelwright.agent.builtin.ir.graph import SUBMODULE, Meta, Node
from kernelwright.agent.builtin.ir.names import attribute, number
from kernelwright.agent.builtin.ir.untraceable import Untraceable


@dataclass(frozen=True)
class SubmoduleCall:
    """One way in which a submodule is called. Where there is a tensor, there is a `Meta` here."""

    path: str  # "blocks.0.router"; empty for the whole
    name: str  # with keys of dictionaries in quotes
    given: Any  # args and kwargs
    made: Any

    @property
    def text(self) -> str:
        """Python with {} for each tensor: "self.blocks[0].router({}, mask={})"."""
        args, kwargs = self.given
        words = [*map(_text, args), *(f"{name}={_text(value)}" for name, value in kwargs.items())]
        return f"{attribute(self.name)}({', '.join(words)})"

    @property
    def results(self) -> tuple[tuple[str, Meta], ...]:
        """The tensors of the result, and how Python gets at them: "", "[0]", "['gates']"."""
        leaves, _ = pytree.tree_flatten_with_path(self.made)
        return tuple((pytree.keystr(path), leaf) for path, leaf in leaves if leaf is not None)

    @property
    def is_plain(self) -> bool:
        """True if all arguments are positional tensors or numbers, and all results contiguous tensors."""
        args, kwargs = self.given
        plain = all(isinstance(value, Meta | int | float | bool | str | None) for value in args)
        made = [leaf for leaf in pytree.tree_leaves(self.made) if leaf is not None]
        return plain and not kwargs and all(isinstance(leaf, Meta) and leaf.contiguous for leaf in made)

    def arguments(self, tensors: Sequence[Tensor] | None = None) -> Any:
        """Args and kwargs with these tensors; without any, with new ones that hold nothing."""
        rest = iter(tensors or ())
        return pytree.tree_map_only(Meta, lambda meta: next(rest) if tensors else _empty(meta), self.given)


@dataclass
class NestedCalls:
    """Submodules, by path, with those that each one calls, as seen in the calls that are carried out here."""

    within: dict[str, dict[str, None]] = field(default_factory=dict)
    _stack: list[str] = field(default_factory=list)

    def carry_out(self, path: str, original: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, bool]:
        """Return the result of a call, and whether it has written into what it was given."""
        if self._stack and path not in self._stack:
            self.within.setdefault(self._stack[-1], {})[path] = None
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        before = [tensor._version for tensor in tensors]
        self._stack.append(path)
        try:
            made = original(*args, **kwargs)
        finally:
            self._stack.pop()
        return made, before != [tensor._version for tensor in tensors]


@dataclass
class Leaving:
    """A search for what has to be left to torch, and its result."""

    build: Callable[[], nn.Module]
    left: dict[str, str] = field(default_factory=dict)  # paths, with the reason
    calls: dict[str, dict[str, SubmoduleCall]] = field(default_factory=dict)  # by path, and by what is given
    nested: NestedCalls = field(default_factory=NestedCalls)
    refused: dict[str, str] = field(default_factory=dict)  # why a submodule is not one operator
    sound: set[str] = field(default_factory=set)  # can be traced

    def search(self, draws: Sequence[Sequence[Any]], reason: str) -> ExportedProgram:
        """Return the program of the whole, which failed for this reason.

        Raises Untraceable where nothing helps.
        """
        for inputs in draws:
            self.record(inputs, reason)
        while True:
            found = self.culprits(self.build(), "", reason, {})
            if "" in found:
                raise Untraceable(found[""])
            self.left |= found
            try:
                model = self.build()
                exported = self.export(model, "", table())
            except Untraceable as error:
                reason = str(error)
                continue
            self.left = {path: why for path, why in self.left.items() if path in self.named(exported)}
            self.hold(draws)
            return exported

    def parts(
        self, draws: Sequence[Sequence[Any]], reason: str
    ) -> dict[str, tuple[SubmoduleCall, ExportedProgram]]:
        """Return the largest submodules that can be traced, where the forward around them cannot.

        Those that are called in one way, with tensors that come one by one. Raises Untraceable where there
        are none, and where they do something else than when they are traced.
        """
        found: dict[str, tuple[SubmoduleCall, ExportedProgram]] = {}
        for path in dict.fromkeys(self.below("")):
            (call,) = self.calls[path].values()
            found[path] = call, self.export(self.build(), path, table())
        if not found:
            raise Untraceable(reason)
        self.hold_parts(draws, list(found))
        return found

    def below(self, path: str) -> Iterator[str]:
        for child in self.nested.within.get(path, ()):
            calls = list(self.calls.get(child, {}).values())
            if child in self.sound and child not in self.refused and len(calls) == 1 and calls[0].is_plain:
                yield child
            elif child not in self.sound:
                yield from self.below(child)

    # What calls what.

    def record(self, inputs: Sequence[Any], reason: str) -> None:
        def call(path: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            made, writes = self.nested.carry_out(path, original, args, kwargs)
            try:
                self.enter(
                    SubmoduleCall(path, quoted(path, model), described((args, kwargs)), described(made))
                )
            except Untraceable as error:
                self.refused[path] = str(error)
            if writes:
                self.refused[path] = "writes into what it is given"
            return made

        model = self.build()
        try:
            with torch.no_grad(), called_through(dict(model.named_modules()), call):
                model(*_cloned(inputs))
        except Exception:  # noqa: BLE001 - the reference may raise on what it was not written for
            if "" not in self.calls:
                raise Untraceable(reason) from None

    def enter(self, call: SubmoduleCall) -> None:
        _text(call.given)
        known = self.calls.setdefault(call.path, {}).setdefault(repr(call.given), call)
        if not all(isinstance(leaf, Meta | None) for leaf in pytree.tree_leaves(call.made)):
            raise Untraceable("gives something other than tensors")
        if known.made != call.made:
            raise Untraceable("gives tensors whose shapes depend on the data")

    # Who is to blame.

    def culprits(
        self, model: nn.Module, path: str, reason: str, asked: dict[str, str | None]
    ) -> dict[str, str]:
        """Return the smallest submodules that one fails for, with the reasons; itself if none fails."""
        found: dict[str, str] = {}
        for child in self.nested.within.get(path, ()):
            if child not in self.calls or child in self.sound | self.left.keys() | found.keys():
                continue
            why = self.failure(model, child, asked)
            if why is None:
                self.sound.add(child)
                continue
            inner = self.culprits(model, child, why, asked)
            if child in inner and child in self.refused:
                reason = f"{reason}; {child}, which cannot be traced, {self.refused[child]}"
            else:
                found |= inner
        return found or {path: reason}

    def failure(self, model: nn.Module, path: str, asked: dict[str, str | None]) -> str | None:
        """Reason why a submodule cannot be traced by itself, or None; of equal submodules one is tried."""
        parts = model.get_submodule(path).named_modules()
        key = f"{[(name, type(part), _settings(part)) for name, part in parts]}{sorted(self.calls[path])}"
        if key not in asked:
            try:
                self.export(model, path, table())
                asked[key] = None
            except Untraceable as error:
                asked[key] = str(error)
        return asked[key]

    # Tracing around what is left out.

    def export(self, model: nn.Module, path: str, decompositions: Mapping[Any, Any]) -> ExportedProgram:
        """Return the program of a submodule of `model`, of each way in which it is called the last one."""
        exported = None
        with self.standing_in(model):
            for call in self.calls.get(path, {}).values():
                args, kwargs = call.arguments()
                exported = export(model.get_submodule(path), args, kwargs, decompositions)
        assert exported is not None
        return exported

    @contextmanager
    def standing_in(self, model: nn.Module) -> Iterator[None]:
        """Trace each call of what is left out as one operator, in the block."""
        for path in self.left:
            _known.update({f"{path}{given}": call for given, call in self.calls[path].items()})

        def call(path: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            key = f"{path}{described((args, kwargs))!r}"
            if key not in _known:
                raise Untraceable(f"{path} is called in another way than when it runs")
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            results = iter(torch.ops.kernelwright.submodule(key, tensors))
            return pytree.tree_map_only(Meta, lambda _: next(results), _known[key].made)

        with called_through({path: model.get_submodule(path) for path in self.left}, call):
            yield

    def spelled_out(self, node: Node) -> Node:
        """Return the node; one that is left out with its call, its results' places, and tensor arguments."""
        if node.op != SUBMODULE:
            return node
        key, tensors = node.args
        call = _known[str(key)]
        places = tuple(text for text, _ in call.results)
        return node.model_copy(update={"args": (call.text, places, tensors)})

    # Whether that is the same.

    def hold(self, draws: Sequence[Sequence[Any]]) -> None:
        """Raise Untraceable where what is left out and what is around it share more than results."""
        theirs, ours = self.build(), self.build()
        program = self.export(ours, "", {})
        left = {path: theirs.get_submodule(path) for path in self.left}
        _modules.update({path: ours.get_submodule(path) for path in self.left})
        seen = _read(program, theirs)
        traced = program.module()

        def call(path: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            before = [tensor._version for tensor in seen]
            made = original(*args, **kwargs)
            if before != [tensor._version for tensor in seen]:
                raise Untraceable(f"{path}, which cannot be traced, writes into what is read elsewhere")
            seen.extend(leaf for leaf in pytree.tree_leaves((args, kwargs, made)) if isinstance(leaf, Tensor))
            return made

        for seed, inputs in enumerate(draws):
            torch.manual_seed(seed)
            try:
                with torch.no_grad(), called_through(left, call):
                    wanted = theirs(*_cloned(inputs))
            except Untraceable:
                raise
            except Exception:  # noqa: BLE001 - the reference may raise on what it was not written for
                break
            torch.manual_seed(seed)
            try:
                with torch.no_grad():
                    found = traced(*_cloned(inputs))
                for pair in ((found, wanted), (ours.state_dict(), theirs.state_dict())):
                    torch.testing.assert_close(*map(pytree.tree_leaves, pair), equal_nan=True)
            except Exception as error:
                names = " and ".join(left)
                raise Untraceable(f"without {names}, which cannot be traced, results differ") from error

    def hold_parts(self, draws: Sequence[Sequence[Any]], paths: Sequence[str]) -> None:
        """Raise Untraceable where parts as they are traced make another whole than the parts themselves."""
        theirs, ours = self.build(), self.build()
        traced = {path: self.export(ours, path, {}).module() for path in paths}

        def call(path: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            return traced[path](*args, **kwargs)

        for seed, inputs in enumerate(draws):
            results = []
            for model, modules in ((theirs, {}), (ours, {path: ours.get_submodule(path) for path in paths})):
                torch.manual_seed(seed)
                try:
                    with torch.no_grad(), called_through(modules, call):
                        results.append(pytree.tree_leaves((model(*_cloned(inputs)), model.state_dict())))
                except Exception as error:
                    if not results:
                        return  # the reference itself raises on what it was not written for
                    raise Untraceable(f"{' and '.join(paths)} cannot be traced alone: {error}") from error
            try:
                torch.testing.assert_close(results[1], results[0], equal_nan=True)
            except AssertionError as error:
                raise Untraceable(f"{' and '.join(paths)} do something else when traced") from error

    def named(self, exported: ExportedProgram) -> set[str]:
        """Return the submodules that a program calls."""
        target = torch.ops.kernelwright.submodule.default
        return {_known[node.args[0]].path for node in exported.graph.nodes if node.target is target}


@contextmanager
def called_through(
    modules: Mapping[str, nn.Module], function: Callable[[str, Callable[..., Any], Any, Any], Any]
) -> Iterator[None]:
    """Replace calls of the modules, in the block, by function(path, original call, args, kwargs).

    It is their classes that are replaced: the proxies that the tracer puts in their place keep the class.
    """
    kinds = {path: type(module) for path, module in modules.items()}
    try:
        for path, module in modules.items():
            module.__class__ = _with_call(kinds[path], path, function)
        yield
    finally:
        for path, module in modules.items():
            module.__class__ = kinds[path]


def _with_call(kind: Any, path: str, function: Callable[[str, Callable[..., Any], Any, Any], Any]) -> Any:
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(path, lambda *a, **k: kind.__call__(self, *a, **k), args, kwargs)

    return type(kind.__name__, (kind,), {"__call__": call})


_known: dict[str, SubmoduleCall] = {}  # what the operator below stands for, by its first argument
_modules: dict[str, nn.Module] = {}  # what it calls when it is carried out, by path


@torch.library.custom_op("kernelwright::submodule", mutates_args=())  # type: ignore[untyped-decorator]
def _submodule(key: str, tensors: list[Tensor]) -> list[Tensor]:
    call = _known[key]
    args, kwargs = call.arguments(tensors)
    made = _modules[call.path](*args, **kwargs)
    if described(made) != call.made:
        raise Untraceable(f"{call.path} gives tensors whose shapes depend on the data")
    return [leaf.clone() for leaf in pytree.tree_leaves(made) if leaf is not None]


@_submodule.register_fake  # type: ignore[untyped-decorator]
def _(key: str, tensors: list[Tensor]) -> list[Tensor]:
    return [_empty(meta) for _, meta in _known[key].results]


torch.fx.node.has_side_effect(torch.ops.kernelwright.submodule.default)


def _settings(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def described(value: Any) -> Any:
    """Return a value with a `Meta` in the place of each tensor."""
    return pytree.tree_map_only(Tensor, meta_of, value)


def _empty(meta: Meta) -> Tensor:
    return torch.empty_strided(meta.shape, meta.strides, dtype=getattr(torch, meta.dtype))


def _text(value: Any) -> str:
    if isinstance(value, Meta):
        return "{}"
    if type(value) in (tuple, list):
        inner = ", ".join(map(_text, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if type(value) is dict:
        return "{{" + ", ".join(f"{_text(key)}: {_text(item)}" for key, item in value.items()) + "}}"
    if value is None or type(value) in (bool, int, float, str, torch.dtype):
        text = number(value) if isinstance(value, float) else repr(value)
        return text.replace("{", "{{").replace("}", "}}")
    raise Untraceable(f"takes a {type(value).__name__}")


def _cloned(inputs: Sequence[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, Tensor) else x for x in inputs]


def _read(program: ExportedProgram, model: nn.Module) -> list[Tensor]:
    """Parameters, buffers and constants of `model` that the program reads."""
    used = {node.name for node in program.graph.nodes if node.users}
    found = []
    for spec in program.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT and spec.arg.name in used:
            try:
                found.append(operator.attrgetter(spec.target)(model))
            except AttributeError:
                continue  # a tensor that forward writes out
    return found
