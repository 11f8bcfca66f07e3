"""torch as host code finds it on a GPU, where there is none: `x.is_cuda`, `device="cuda"`, `torch.cuda`.

    with TorchOnGpu("sm_90"):
        x = torch.empty(8, device="cuda")  # lies in the CPU's memory
        assert x.is_cuda and torch.cuda.get_device_capability() == (9, 0)

All tensors report that they are on the GPU, including those that nobody moved there.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from kernelwright.kernelbench.chips.cards import CARDS
from kernelwright.kernelbench.chips.occupancy import CHIPS, MOST_THREADS, WARP
from kernelwright.kernelbench.emulate.findings import Unsupported

DEFAULT_CHIP = "sm_90"
_GPU, _CPU = torch.device("cuda", 0), torch.device("cpu")
_MISSING = object()  # what torch for CPUs does not have
_MAKERS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class TorchOnGpu(TorchFunctionMode):
    """Mode in which torch reports a GPU, and tensors report to be on it; they stay where they are.

    `zeros`: fill memory that only kernels would write with zeros, if none of them runs: torch calls may use
    its content as indices.
    """

    def __init__(self, chip: str = DEFAULT_CHIP, zeros: bool = False) -> None:
        super().__init__()
        self._zeros = zeros
        self._pretended = _pretended(chip.rstrip("af"), self)
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        for owner, name, value in self._pretended:
            self._replaced.append((owner, name, getattr(owner, name, _MISSING)))
            setattr(owner, name, value)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        while self._replaced:
            owner, name, value = self._replaced.pop()
            delattr(owner, name) if value is _MISSING else setattr(owner, name, value)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if (said := SAID.get(func)) is not None:
            return said(*args)
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        given = {name: _here(value) for name, value in (kwargs or {}).items()}
        given.pop("pin_memory", None)
        made = func(*map(_here, args), **given)
        if self._zeros and getattr(func, "__name__", "") in _MAKERS:
            return made.zero_()
        if func is torch.Tensor.to and made is args[0] and _names_cpu([*args[1:], *given.values()]):
            given_one = any(_names_gpu(value) for value in [*args[1:], *(kwargs or {}).values()])
            return made if given_one else made.clone()  # a copy, as from a GPU
        return made


# What tensors say and do, by the function that torch asks the mode about.
SAID: dict[Any, Callable[..., Any]] = {
    torch.Tensor.is_cuda.__get__: lambda _: True,
    torch.Tensor.is_cpu.__get__: lambda _: False,
    torch.Tensor.device.__get__: lambda _: _GPU,
    torch.Tensor.get_device: lambda _: 0,
    torch.Tensor.cuda: lambda tensor, *_: tensor,
    torch.Tensor.cpu: lambda tensor, *_: tensor.clone(),
    torch.Tensor.pin_memory: lambda tensor, *_: tensor,
}


def _names_gpu(value: Any) -> bool:
    return isinstance(value, (torch.device, str)) and str(value).partition(":")[0] == "cuda"


def _names_cpu(values: Sequence[Any]) -> bool:
    return any(isinstance(value, (torch.device, str)) and str(value) == "cpu" for value in values)


def _here(value: Any) -> Any:
    """Return an argument of a torch call, with the CPU in place of a GPU."""
    return _CPU if _names_gpu(value) else value


class _Stream:
    """A stream or an event: all work is done when a call returns, so there is nothing to wait for."""

    cuda_stream = cuda_event = stream_id = device_index = priority = 0
    device = _GPU

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    synchronize = wait_stream = wait_event = wait = record = _nothing

    def record_event(self, event: Any = None) -> Any:
        return event or _Stream()

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 1.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_AUTOCAST = torch.autocast.__init__


def _autocast(self: Any, device_type: str, dtype: Any = None, *rest: Any, **named: Any) -> None:
    if _names_gpu(device_type):
        device_type, dtype = "cpu", dtype or torch.float16
    _AUTOCAST(self, device_type, dtype, *rest, **named)


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> "_Generator":
        return super().__new__(cls, device=_here(device))


def _operator(mode: TorchFunctionMode, define: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch.library.custom_op or triton_op, whose functions see torch as their callers do.

    torch calls them outside the mode, and on the device of the tensors.
    """

    def within(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _Again(mode):
                return function(*args, **kwargs)

        return call

    def operator(name: str, function: Any = None, /, **named: Any) -> Any:
        named.pop("device_types", None)  # it is for where tensors lie
        if function is None:
            return lambda function: define(name, within(function), **named)
        return define(name, within(function), **named)

    return operator


class _Again(TorchFunctionMode):
    """A mode that is entered once more."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(self, *given: Any) -> Any:
        return self._mode.__torch_function__(*given)


class _Block(contextlib.nullcontext[None]):
    """A device or stream guard."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def _pretended(chip: str, mode: TorchFunctionMode) -> list[tuple[Any, str, Any]]:
    """Return (owner, attribute, value on a GPU). Anything left out fails as it does without a GPU."""
    of_chip = properties(chip)
    capability = (of_chip.major, of_chip.minor)
    cuda: Any = torch.cuda
    set_default_device = torch.set_default_device
    default_stream = _Stream()
    memory = of_chip.total_memory
    of_cuda: dict[str, Any] = {
        **_giving(True, "is_available", "is_initialized", "is_bf16_supported"),
        **_giving(1, "device_count"),
        **_giving(0, "current_device", "memory_allocated", "max_memory_allocated", "memory_reserved"),
        **_giving(0, "max_memory_reserved"),
        **_giving(None, "init", "_lazy_init", "set_device", "synchronize", "set_stream", "empty_cache"),
        **_giving(None, "ipc_collect", "reset_peak_memory_stats", "reset_max_memory_allocated"),
        **_giving(False, "is_current_stream_capturing"),
        **_giving(capability, "get_device_capability"),
        **_giving(of_chip.name, "get_device_name"),
        **_giving(of_chip, "get_device_properties"),
        **_giving([chip], "get_arch_list"),
        **_giving((memory, memory), "mem_get_info"),
        **_giving(default_stream, "current_stream", "default_stream"),
        **dict.fromkeys(("Stream", "ExternalStream", "Event"), _Stream),
        **dict.fromkeys(("device", "device_of", "stream", "StreamContext"), _Block),
        **dict.fromkeys(("manual_seed", "manual_seed_all"), torch.default_generator.manual_seed),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        **dict.fromkeys(("CUDAGraph", "graph", "make_graphed_callables"), _not("CUDA graphs")),
    }
    of_accelerator: dict[str, Any] = {
        **_giving(True, "is_available"),
        **_giving(1, "device_count"),
        **_giving(0, "current_device_index"),
        **_giving(_GPU, "current_accelerator"),
        **_giving(None, "synchronize", "set_device_index", "set_stream", "empty_cache"),
        **_giving(default_stream, "current_stream"),
    }
    library: Any = torch.library
    operators = {
        name: _operator(mode, getattr(library, name))
        for name in ("custom_op", "triton_op")
        if hasattr(library, name)
    }
    wanted: list[tuple[Any, dict[str, Any]]] = [
        (library, {**operators, "wrap_triton": lambda kernel: kernel}),
        (cuda, of_cuda),
        (cuda.nvtx, {name: _giving(None, name)[name] for name in ("range_push", "range_pop", "mark")}),
        (getattr(torch, "accelerator", None), of_accelerator),
        (torch.version, {"cuda": "12.8"}),
        (torch.Tensor, _giving(None, "record_stream")),  # which asks no mode
        (torch.backends.cuda, _giving(True, "is_built")),
        (torch.autocast, {"__init__": _autocast}),
        (
            torch,
            {
                "Generator": _Generator,
                "set_default_device": lambda device: set_default_device(_here(device)),
                # Its code would be a GPU's; what it means is what is compiled.
                "compile": lambda model=None, **_: (lambda f: f) if model is None else model,
            },
        ),
    ]
    present = [
        (owner, name, value)
        for owner, values in wanted
        for name, value in values.items()
        if hasattr(owner, name)
    ]
    return [*present, (torch._C, "_cuda_getCurrentRawStream", lambda _: 0)]


def _giving(value: Any, *names: str) -> dict[str, Callable[..., Any]]:
    """Return functions of these names that return the value, whatever their arguments."""
    return {name: lambda *_, **__: value for name in names}


def _not(construct: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported(construct)

    return refuse


def properties(chip: str) -> SimpleNamespace:
    """Return the properties of torch.cuda.get_device_properties. Raises ValueError for an unknown chip."""
    if chip not in CHIPS:
        raise ValueError(f"unknown chip {chip}; use one of {', '.join(CHIPS)}")
    limits, card = CHIPS[chip], CARDS[chip]
    major, minor = divmod(int(chip.removeprefix("sm_")), 10)
    return SimpleNamespace(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=card.memory_gib << 30,
        multi_processor_count=card.multiprocessors,
        max_threads_per_multi_processor=limits.warps * WARP,
        max_threads_per_block=MOST_THREADS,
        warp_size=WARP,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=limits.shared_bytes - limits.system_bytes,
        shared_memory_per_multiprocessor=limits.shared_bytes,
        L2_cache_size=card.l2_mib << 20,
        is_integrated=chip == "sm_87",
        is_multi_gpu_board=False,
    )
