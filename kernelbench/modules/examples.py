"""The task of a module that is called with inputs of several sizes, as examples of these calls tell.

Of x of [8, 128, 64] and of [2, 200, 64] the first two axes may have any length. Axes whose lengths are the
same in each example are one, in all inputs. The module is then called at further, small lengths, with numbers
like those of the first example.
"""

from collections.abc import Mapping, Sequence

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.tensor_code import input_like, resized
from kernelwright.kernelbench.modules.tracing import TracedCall, trace_call
from kernelwright.kernelbench.modules.writing import free_task_source, taken_names, task_source, unused_name
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.sizes import workload_text

_FIX = "let examples differ in sizes alone, or leave out more_examples"


def task_of_examples(calls: Sequence[TracedCall]) -> str:
    """Return the task of calls of one module; where sizes differ, one for any, with these as its workload.

    The first is the one that is profiled. Raises UsageError where they differ in more than sizes, and where
    the module does something else at other ones.
    """
    first = calls[0]
    for number, call in enumerate(calls[1:], start=2):
        if why := _differs(first, call):
            raise UsageError(f"example {number} of {call.name} {why}", _FIX)
    axes = _axes(calls)
    if not axes:
        return task_source(first)
    base = list(first.inputs.values())
    places = {name: place for name, (place, _) in axes.items()}
    sizes = {name: lengths[0] for name, (_, lengths) in axes.items()}
    lengths_of = {lengths: name for name, (_, lengths) in axes.items()}
    names = [
        [lengths_of.get(lengths) for lengths in zip(*(tensor.shape for tensor in tensors), strict=True)]
        for tensors in zip(*(call.inputs.values() for call in calls), strict=True)
    ]

    def at(point: Mapping[str, int]) -> tuple[TracedCall, list[str]]:
        inputs = []
        for tensor, named in zip(base, names, strict=True):
            shape = [point[n] if n else own for n, own in zip(named, tensor.shape, strict=True)]
            inputs.append(resized(tensor, shape, "an input"))
        if point == sizes:
            call = first
        else:
            args, kwargs = first.arguments.filled(inputs)
            call = trace_call(first.function, args, kwargs)
            if why := _differs(first, call):
                raise UsageError(f"{first.name} {why} at other sizes", _FIX)
        drawn = zip(first.inputs, base, inputs, strict=True)
        return call, [input_like(tensor, f"the input {name}", there) for name, tensor, there in drawn]

    workload = [
        Size(constants={name: str(lengths[number]) for name, (_, lengths) in axes.items()})
        for number in range(len(calls))
    ]
    source = free_task_source(at, sizes, places, others=calls[1:])
    return f"{source}\n\n{workload_text(workload)}\n"


def _differs(first: TracedCall, call: TracedCall) -> str:
    """Return what else than its sizes differs from the first call; "" if nothing."""
    if call.arguments != first.arguments:
        return "has arguments of another form"
    if call.results != first.results:
        return "returns another form, or other numbers beside tensors"
    for one, other in zip(first.inputs.values(), call.inputs.values(), strict=True):
        if (one.dtype, one.dim(), one.device) != (other.dtype, other.dim(), other.device):
            return "has a tensor of another dtype, device or number of axes"
    return ""


def _axes(calls: Sequence[TracedCall]) -> dict[str, tuple[tuple[int, int], tuple[int, ...]]]:
    """Return the axes that differ by name: an input by its number and the axis of it, and the lengths."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for place, tensors in enumerate(zip(*(call.inputs.values() for call in calls), strict=True)):
        for axis, lengths in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
            if len(set(lengths)) > 1:
                found.setdefault(lengths, (place, axis))
    if len({tuple(each[number] for each in found) for number in range(len(calls))}) < len(calls):
        raise UsageError(
            f"two examples of {calls[0].name} have the same sizes", "give an example of each size once"
        )
    taken = set().union(*map(taken_names, calls))
    named: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {}
    for lengths, (place, axis) in found.items():
        usual = "length" if axis else "batch"
        name = unused_name(f"size_{len(named) + 1}" if usual in named else usual, taken)
        named[name] = ((place, axis), lengths)
    return named
