"""Calls of an operator in OpInfo, torch's own tests of its operators, as a line of a trace each."""

from collections.abc import Sequence
from typing import Any

from kernelwright.kernelbench.errors import KernelwrightError, MissingPrerequisite, UsageError
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.modules.worker import ask_worker, refused

_TIMEOUT_S = 600.0
_ABBREVIATED = {"float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32", "bool": "b8"}


def opinfo_calls(operator: str) -> list[str]:
    """Return the arguments of an operator's calls ("relu.default"), as a trace has them.

    They are the samples in float32 which make that one call alone. Raises UsageError, MissingPrerequisite.
    """
    name = f"the OpInfo suite of {operator}"
    answer = ask_worker(f"{__name__}:serve", {"operator": operator}, name, "try again", _TIMEOUT_S)
    return [str(each) for each in answer["calls"]]


def serve(channel: Channel) -> None:
    """Worker entry: the calls of one operator."""
    message, _ = channel.receive_json()
    try:
        answer: dict[str, Any] = {"calls": list(dict.fromkeys(_calls(message["operator"])))}
    except KernelwrightError as error:
        answer = refused(error)
    channel.send_json(answer)


def _calls(operator: str) -> list[str]:
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise MissingPrerequisite(
            f"OpInfo needs a package that torch does not bring ({error})", "pip install expecttest"
        ) from None
    base = operator.partition(".")[0].strip("_")
    infos = [each for each in op_db if base in (each.aten_name.strip("_"), each.name.rpartition(".")[2])]
    found = [line for info in infos for line in _of_info(info, f"aten.{operator}")]
    if not found:
        known = ", ".join(sorted({each.name for each in infos})) or "none of this name"
        raise UsageError(
            f"OpInfo has no sample that calls {operator} alone (it has {known})",
            "give a trace: FILE.txt:aten.mul.Tensor",
        )
    return found


def _of_info(info: Any, operator: str) -> list[str]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class _Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
        ) -> Any:
            seen.append((str(func), args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    if torch.float32 not in info.supported_dtypes("cpu"):
        return []
    found = []
    for sample in info.sample_inputs("cpu", torch.float32):
        seen: list[tuple[str, Any, Any]] = []
        try:
            with _Recorder():
                info.op(sample.input, *sample.args, **sample.kwargs)
        except Exception:  # noqa: BLE001 - some samples are for other devices or backends
            continue
        if len(seen) == 1 and seen[0][0] == operator:
            _, args, keywords = seen[0]
            words = ", ".join(f"'{name}': {_text(value)}" for name, value in keywords.items())
            found.append(f"(({''.join(f'{_text(each)}, ' for each in args)}), {{{words}}})")
    return found


def _text(value: Any) -> str:
    """Return a value as a trace has it."""
    import torch

    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        strides = "" if value.is_contiguous() else f", {list(value.stride())}"
        return f"T({list(value.shape)}, {_ABBREVIATED.get(dtype, dtype)}{strides})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(each) for each in value)}]"
    return repr(value)
