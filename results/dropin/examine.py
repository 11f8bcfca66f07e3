"""Examination of a verified kernel: runs it once more to collect what a package needs.

In a separate process, since imported and built code stays loaded. Kernels that cannot be packaged are
rejected here: weights that differ from the reference's, inputs that are not tensors, outputs that share
memory with inputs.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.evaluator.reference.loading import import_source, to_device, to_precision
from kernelwright.kernelbench.evaluator.reference.task_format import constructor_inputs, for_device, inputs_of
from kernelwright.kernelbench.jit import cubin, cuda, cuda_options
from kernelwright.kernelbench.jit.arguments import DTYPES
from kernelwright.kernelbench.jit.cache import BuildCache
from kernelwright.kernelbench.jit.cuda import CudaModule
from kernelwright.kernelbench.jit.errors import BuildError
from kernelwright.kernelbench.jit.library import CppLibrary, build
from kernelwright.kernelbench.jit.signature import Parameter, Signature
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.kernelbench.sources import without_gradient
from kernelwright.results.dropin.any_size import LARGEST_WIDE, OneSize, for_any_size
from kernelwright.results.dropin.gradients import Gradient, NoGradient, gradients, unlike
from kernelwright.results.dropin.records import BuiltLibrary, Examined, words
from kernelwright.results.dropin.runtime.accuracy import first_excess, flat, in_float64
from kernelwright.results.dropin.runtime.built import key
from kernelwright.results.dropin.runtime.envelope import Argument, flags_here

# Chips that CUDA C++ is built for where there is none: data centres' and desktops' since Ampere.
_CHIPS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_INSTRUCTIONS = re.compile(
    "sse|ssse|avx|fma|f16c|bmi|amx|adx|popcnt|abm|lzcnt|movbe|aes|vaes|pclmul|vpclmul|gfni|sha|asimd|sve|neon"
)


def examined(
    task: Task,
    candidate: Candidate,
    folder: Path,
    device: torch.device,
    fresh: bool = True,
    trained: bool = True,
) -> Examined:
    """Examine a kernel on a device; raises UsageError if it cannot be exported.

    `folder`: for the files that are imported; `fresh`: outputs must not share memory with inputs;
    `trained`: with gradients. A kernel for several sizes is examined for any, see `any_size`.
    """
    torch.manual_seed(0)
    libraries: dict[str, BuiltLibrary] = {}
    chip = ""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        chip = f"sm_{major}{minor}"
    with torch.no_grad():
        reference = import_source(for_device(task.primary.source, device), "exported_reference", folder)
        arguments = constructor_inputs(reference.get_init_inputs(), reference.Model)
        model = to_device(reference.Model(*arguments), task.precision, device)
        given = inputs_of(reference.get_inputs(), model)
        inputs = [to_precision(_on(value, device), task.precision) for value in given]
        jit.compile_cpp = _recording(libraries)
        jit.compile_cuda = _recording_cuda(libraries, chip)
        kernel = import_source(candidate.source, "exported_kernel", folder).ModelNew(*arguments)
        kernel = to_device(kernel, task.precision, device)
        names = _weights(model, kernel)
        outputs = _checked(task, model, kernel, inputs, names, fresh)
        under_autocast = _is_left_by_autocast(model, inputs)
        relies_on = _relies_on(kernel, inputs, outputs)
        rows = _rows(model, inputs, outputs)
        with FlopCounterMode(display=False) as counter:
            model(*inputs)
    taken = _names(model, len(inputs))
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    weights = [held[name] for name in names]
    called = [*taken, *(_identifier(name) for name in names)]
    made = ["output"] if len(outputs) == 1 else [f"output_{place}" for place in range(len(outputs))]
    made = [unlike(name, called) for name in made]
    differentiated = _differentiated(task, model, dict(zip(taken, inputs, strict=True)), names)
    found: list[Gradient] = []
    why = "none is wanted"
    if trained and differentiated:
        found, why = _gradients(model, inputs, names, called, made, differentiated)
    examined = Examined(
        inputs=words(taken, inputs),
        weights=words([_identifier(name) for name in names], weights),
        outputs=words(made, outputs),
        rows=rows,
        parameters=tuple(names),
        flops=counter.get_total_flops(),
        differentiated=differentiated,
        gradients=tuple(vars(each) for each in found),
        no_gradient=why,
        under_autocast=under_autocast,
        relies_on=relies_on,
        libraries=tuple(libraries.values()),
        torch=torch.__version__,
        cpu_flags=tuple(sorted(flag for flag in flags_here() if _INSTRUCTIONS.match(flag))),
        chip=chip,
    )
    if not task.axes:
        return examined
    try:
        with torch.no_grad():
            free = for_any_size(task, examined, model, kernel, folder, device)
        if len(libraries) > len(examined.libraries):
            raise OneSize("it builds other code at other sizes")
        return examined.model_copy(update=free)
    except OneSize as why_not:
        return examined.model_copy(update={"one_size": str(why_not)})


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _recording(libraries: dict[str, BuiltLibrary]) -> Callable[..., CppLibrary]:
    def compile_cpp(source: str, flags: Sequence[str] = (), *, timeout_s: float = 120.0) -> CppLibrary:
        words = [flags] if isinstance(flags, str) else list(flags)
        path, signatures = build(source, words, BuildCache(), timeout_s)
        library = CppLibrary(path, signatures)
        functions = {name: _words(each) for name, each in signatures.items() if name in vars(library)}
        named = key(source, words)
        libraries[named] = BuiltLibrary(key=named, files={"so": path}, functions=functions)
        return library

    return compile_cpp


def _recording_cuda(libraries: dict[str, BuiltLibrary], chip: str) -> Callable[..., CudaModule]:
    """Return a `compile_cuda` that records what it builds: for `chip`, or for `_CHIPS` without one."""

    def compile_cuda(source: str, options: Sequence[str] = (), *, timeout_s: float = 120.0) -> CudaModule:
        module = cuda.compile_cuda(source, options, timeout_s=timeout_s)
        named, chosen = key(source, options), cuda_options.check(options)
        if named not in libraries:
            found, why = {}, ""
            for each in (chip,) if chip else _CHIPS:
                try:
                    found[each] = cubin.kept(source, chosen.nvrtc, each, BuildCache(), timeout_s)
                except (BuildError, MissingPrerequisite) as error:
                    why = f"{each}: {error}"
            if not found:
                raise UsageError(f"the kernel's CUDA C++ cannot be built ({why})", cubin.FIX)
            libraries[named] = BuiltLibrary(
                key=named,
                files={f"{each}.cubin": path for each, path in found.items()},
                functions={name: _words(each) for name, each in cuda.kernels(source, chosen.defines).items()},
                chips=tuple(found),
            )
        return module

    return compile_cuda


def _words(signature: Signature) -> dict[str, Any]:
    parameters = [(p.type, p.pointers, _dtypes(p)) for p in signature.parameters]
    return {"returns": signature.returns, "parameters": parameters}


def _dtypes(parameter: Parameter) -> list[str]:
    """Return names of the dtypes a pointer may point to; none for numbers, and for void."""
    found = DTYPES.get(parameter.type, ()) if parameter.pointers else ()
    return sorted(str(dtype).removeprefix("torch.") for dtype in found)


def _weights(model: nn.Module, kernel: nn.Module) -> list[str]:
    """Return the names of the reference's parameters and buffers; the kernel must have the same ones."""
    wanted = {name: value.shape for name, value in (*model.named_parameters(), *model.named_buffers())}
    found = {name: value.shape for name, value in (*kernel.named_parameters(), *kernel.named_buffers())}
    if wanted != found:
        odd = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        raise UsageError(
            f"the kernel's weights differ from the reference's: {', '.join(odd)}",
            "export a kernel that keeps the names and shapes of all parameters and buffers",
        )
    return list(wanted)


def _checked(
    task: Task,
    model: nn.Module,
    kernel: nn.Module,
    inputs: Sequence[Any],
    names: Sequence[str],
    fresh: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the kernel's outputs, checked against the reference also with changed weights.

    If `fresh`, they must not share memory with inputs or weights.
    """
    if not inputs or not all(type(each) is torch.Tensor for each in inputs):
        raise UsageError(
            f"invalid inputs of {task.id}: not all are tensors", "export a task that takes only tensors"
        )
    mine, theirs = (dict(m.named_parameters()) | dict(m.named_buffers()) for m in (kernel, model))
    for name in names:
        mine[name].data.copy_(theirs[name])
    given = [*inputs, *(mine[name] for name in names)]
    outputs, found = model(*inputs), _unmodifying(kernel, inputs, given)
    if fresh and isinstance(outputs, tuple) and len(outputs) == 1:
        raise UsageError(
            f"invalid output of {task.id}: a tuple of one", "export a task that returns the tensor itself"
        )
    kinds = [[type(each) for each in flat(made)] for made in (outputs, found)]
    if kinds[0] != kinds[1] or {*kinds[0]} != {torch.Tensor}:
        raise UsageError(
            f"invalid outputs of {task.id}: not all are tensors", "export a task that returns tensors"
        )
    if why := _inaccurate(model, inputs, outputs, found):
        raise UsageError(
            f"the kernel is less accurate than its reference: {why}",
            "export one that was verified in this precision",
        )
    for name in names:
        if theirs[name].is_floating_point():
            theirs[name].data.add_(torch.rand_like(theirs[name]) * 0.1)
        mine[name].data.copy_(theirs[name])
    outputs, found = model(*inputs), _unmodifying(kernel, inputs, given)
    memory = {each.untyped_storage().data_ptr() for each in given}
    if fresh and any(each.numel() and each.untyped_storage().data_ptr() in memory for each in flat(found)):
        raise UsageError("an output shares memory with an input", "export a kernel whose outputs are fresh")
    if _inaccurate(model, inputs, outputs, found):
        raise UsageError(
            "the kernel ignores changes to its weights after it was constructed",
            "export a kernel that reads its weights at each call",
        )
    return tuple(flat(found))


def _unmodifying(kernel: nn.Module, inputs: Sequence[Any], given: Sequence[torch.Tensor]) -> Any:
    """Return what the kernel computes; it must leave what it is given as it is."""
    before = [each.clone() for each in given]
    found = kernel(*inputs)
    if not all(torch.equal(old, new) for old, new in zip(before, given, strict=True)):
        raise UsageError(
            "the kernel writes into its inputs or weights", "export one that does not modify them"
        )
    return found


def _inaccurate(model: nn.Module, inputs: Sequence[torch.Tensor], outputs: Any, found: Any) -> str:
    """Describe how much further from float64 the kernel's outputs are than the reference's; "" if not."""
    small = max(each.numel() for each in (*inputs, *model.parameters())) <= LARGEST_WIDE
    exact = in_float64(copy.deepcopy(model).double(), inputs, outputs) if small else outputs
    return first_excess(found, outputs, exact)


class _Dtypes(TorchDispatchMode):
    """Dispatch mode that records operators with the dtypes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.seen.append(
            (function, [each.dtype for each in tree_leaves(made) if isinstance(each, torch.Tensor)])
        )
        return made


def _is_left_by_autocast(model: nn.Module, inputs: Sequence[torch.Tensor]) -> bool:
    """Return True if autocast leaves the reference unchanged, as it does norms and activations."""
    with _Dtypes() as plain:
        model(*inputs)
    for dtype in (torch.bfloat16, torch.float16):
        try:
            with torch.autocast(inputs[0].device.type, dtype), _Dtypes() as cast:
                model(*inputs)
        except Exception:  # noqa: BLE001 - autocast is not what it was written for
            return False
        if cast.seen != plain.seen:
            return False
    return True


def _relies_on(
    kernel: nn.Module, inputs: Sequence[torch.Tensor], right: Sequence[torch.Tensor]
) -> tuple[str, ...]:
    """Return the states of torch the kernel relies on; in another one its file fails or is wrong.

    Not a fault in a package, which calls the kernel only in these states, but one in a file used by itself.
    """
    found = []
    for name, state in _STATES.items():
        try:
            with state():
                made = flat(kernel(*inputs))
            for ours, before in zip(made, right, strict=True):
                assert ours.device == before.device
                atol = 1e-3 * float(before.abs().max() if before.numel() else 0)
                torch.testing.assert_close(ours, before, rtol=1e-3, atol=atol)
        except Exception:  # noqa: BLE001 - the loader refuses what the C++ would misread, torch other things
            found.append(name)
    return tuple(found)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


_STATES: dict[str, Callable[[], Any]] = {
    "the default dtype float32": partial(_default_dtype, torch.float64),
    "the CPU as default device": partial(torch.device, "meta"),
}


def _gradients(
    model: nn.Module,
    inputs: Sequence[torch.Tensor],
    weights: Sequence[str],
    names: Sequence[str],
    made: Sequence[str],
    differentiated: Sequence[str],
) -> tuple[list[Gradient], str]:
    try:
        return gradients(model, inputs, weights, names, made, differentiated), ""
    except NoGradient as why:
        return [], str(why)


def _differentiated(
    task: Task, model: nn.Module, inputs: Mapping[str, torch.Tensor], weights: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of inputs and weights whose gradients training wants.

    Of inputs all floating ones but those that the task declares in `without_gradient`, of weights the
    parameters that are not frozen: buffers have none.
    """
    declared = without_gradient(task.source, task.id)
    if unknown := [name for name in declared if name not in inputs]:
        raise UsageError(
            f"without_gradient of {task.id} names {unknown[0]!r}, which is no input of forward",
            f"use some of {', '.join(inputs)}",
        )
    found = [name for name, each in inputs.items() if each.dtype.is_floating_point and name not in declared]
    learnt = {name for name, each in model.named_parameters() if each.requires_grad}
    return (*found, *(_identifier(name) for name in weights if name in learnt))


def _rows(
    model: nn.Module, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> tuple[int, ...]:
    """Return the dimensions along which the model splits: joined inputs give the joined outputs.

    Tested in float64 on random numbers; the dimensions are those of all inputs and outputs.
    """
    if max(each.numel() for each in (*inputs, *outputs)) > LARGEST_WIDE:
        return ()
    generator = torch.Generator().manual_seed(0)
    forms = [Argument("", tuple(x.shape), tuple(x.stride()), x.dtype) for x in inputs]
    # The second is larger, so that what is taken over both, a mean say, is that of neither.
    device = inputs[0].device
    parts = [[_scaled(form.like(generator).to(device), by) for form in forms] for by in (1.0, 3.0)]
    try:
        twin = copy.deepcopy(model).double()
        alone = [tuple(flat(twin(*part))) for part in parts]
        dimensions = range(min(each.dim() for each in (*inputs, *outputs)))
        return tuple(d for d in dimensions if _splits(twin, parts, alone, d))
    except Exception:  # noqa: BLE001 - a reference may refuse such numbers or another dtype
        return ()


def _splits(
    model: nn.Module,
    parts: Sequence[Sequence[torch.Tensor]],
    alone: Sequence[tuple[torch.Tensor, ...]],
    d: int,
) -> bool:
    if len({each.shape[d] for each in (*parts[0], *alone[0])}) > 1:
        return False
    joined = [torch.cat(each, d) for each in zip(*alone, strict=True)]
    try:
        if not all(each.isfinite().all() for each in joined):
            return False
        made = flat(model(*(torch.cat(each, d) for each in zip(*parts, strict=True))))
        for ours, right in zip(made, joined, strict=True):
            atol = 1e-4 * float(right.double().abs().max())  # some references compute in float32
            torch.testing.assert_close(ours.double(), right.double(), rtol=0.0, atol=atol)
    except Exception:  # noqa: BLE001 - other numbers, another shape, or not to be called so
        return False
    return True


def _scaled(tensor: torch.Tensor, by: float) -> torch.Tensor:
    return tensor.double() * by if tensor.is_floating_point() else tensor


def _names(model: nn.Module, count: int) -> list[str]:
    """Return the reference's names of its inputs."""
    code = type(model).forward.__code__
    given = code.co_varnames[1 : code.co_argcount]
    return list(given[:count]) if len(given) >= count else [f"input_{place}" for place in range(count)]


def _identifier(name: str) -> str:
    return name.replace(".", "_")
