"""A sample of upstream KernelBench problems, drawn with a fixed seed, with sizes that two cores can do.

    KERNELBENCH_DIR=... python -m benchmarks draw

Constants are halved, batches first, until a call is small enough; nothing is run, torch's fake tensors count
bytes and FLOPs. Machine: any, with a checkout of KernelBench. Time: 5 minutes (estimate). Writes
cpu/upstream.txt, which `python -m benchmarks upstream` reads.
"""

import random
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.publishing import log
from benchmarks.runs import SAMPLE
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources.checkout import VARIABLE
from kernelwright.results.store.folder import write_atomically

_SEED = 0
_MAX_FLOPS = 4e9  # of a call
_MAX_BYTES = 500e6  # of inputs and of all that operators of a call write, except views
_SMALLEST = 4  # value that a constant is reduced to


def run(
    kernelbench_dir: Annotated[Path, typer.Option(envvar=VARIABLE, help="A KernelBench checkout.")],
    count: Annotated[int, typer.Option(help="Problems to draw, of levels 1 and 2.")] = 40,
) -> None:
    names = [
        task.id
        for level in (1, 2)
        for task in sources.resolve([], suite=f"kernelbench:{level}", kernelbench_dir=kernelbench_dir)
    ]
    random.Random(_SEED).shuffle(names)
    lines: list[str] = []
    for name in names:
        [task] = sources.resolve([name], kernelbench_dir=kernelbench_dir)
        values = _reduced(task.source)
        if values is None:
            log(f"{name}: left out")
            continue
        assigned = " ".join(f"{constant}={value}" for constant, value in values.items())
        lines.append(f"{name} set {assigned}".removesuffix(" set "))
        log(lines[-1])
        if len(lines) == count:
            break
    write_atomically(SAMPLE, "\n".join(sorted(lines, key=_by_number)) + "\n")


def _by_number(line: str) -> tuple[int, ...]:
    """Level and problem of a line such as "kernelbench:level1/20_LeakyReLU set dim=8"."""
    return tuple(int(number) for number in re.findall(r"[:/]\D*(\d+)", line.split()[0]))


def _reduced(source: str) -> dict[str, int] | None:
    """Return new values of constants; None if the problem does not run without data, or stays too large."""
    original = {name: int(text) for name, text in sources.constants(source).items() if text.isdigit()}
    values: dict[str, int] = {}
    cost = _cost(source)
    stuck: set[str] = set()
    while cost is not None and cost > 1:
        now = {**original, **values}
        possible = (n for n in _batches_first(now) if n not in stuck and now[n] // 2 >= _SMALLEST)
        halved = next(possible, None)
        if halved is None:
            return None
        tried = {**values, halved: now[halved] // 2}
        try:
            new = _cost(sources.apply(source, {name: str(value) for name, value in tried.items()}))
        except UsageError:
            new = None
        if new is None or new >= cost:
            stuck.add(halved)
        else:
            values, cost = tried, new
            if "batch" in halved and values[halved] <= 2 * _SMALLEST:
                stuck.add(halved)
    return values if cost is not None else None


def _batches_first(values: Mapping[str, int]) -> list[str]:
    """Names of constants, batches before others, each from the largest to the smallest."""
    return sorted(values, key=lambda name: ("batch" not in name, -values[name]))


def _cost(source: str) -> float | None:
    """Cost of a call as a share of the limits, counted without data; None if it does not run."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    class Written(TorchDispatchMode):
        bytes = 0

        def __torch_dispatch__(
            self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            if not getattr(function, "is_view", False):
                self.count(result if isinstance(result, tuple | list) else (result,))
            return result

        def count(self, values: Sequence[object]) -> None:
            self.bytes += sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))

    module: dict[str, Any] = {}
    try:
        with FakeTensorMode(), torch.no_grad():
            exec(source, module)
            model = module["Model"](*module["get_init_inputs"]())
            inputs = module["get_inputs"]()
            with Written() as written, FlopCounterMode(display=False) as flops:
                model(*inputs)
            written.count(inputs)
    except Exception:  # noqa: BLE001 - a problem may do anything
        log(traceback.format_exc().splitlines()[-1])
        return None
    return max(flops.get_total_flops() / _MAX_FLOPS, written.bytes / _MAX_BYTES)
