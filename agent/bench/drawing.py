"""A sample of upstream KernelBench problems, drawn with a fixed seed, sizes reduced until two cores do."""

import hashlib
import random
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.agent.bench.publishing import PUBLISHED, log
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.store.folder import write_atomically

SAMPLE = PUBLISHED / "upstream.txt"
_SEED = 0
_MOST_FLOPS = 4e9  # of a call
_MOST_BYTES = 500e6  # of inputs and of what all operators of a call write, views apart
_LEAST = 4  # that a constant is reduced to


def upstream_run() -> Path:
    """The folder of the run that `upstream` makes of the sample."""
    digest = hashlib.sha256(SAMPLE.read_bytes()).hexdigest()[:8] if SAMPLE.exists() else "none"
    return Path("runs") / f"bench-upstream-{digest}"


def draw(kernelbench_dir: Annotated[Path, typer.Option(envvar="KERNELBENCH_DIR")], count: int = 40) -> None:
    """Draw problems of levels 1 and 2, and halve constants, batches first, until they are small enough."""
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
    """New values of constants; None where the problem does not run without data, or stays too large."""
    found = {name: int(text) for name, text in sources.constants(source).items() if text.isdigit()}
    values: dict[str, int] = {}
    cost = _cost(source)
    stuck: set[str] = set()
    while cost is not None and cost > 1:
        largest = sorted(found, key=lambda name: ("batch" not in name, -values.get(name, found[name])))
        halved = next((n for n in largest if n not in stuck and values.get(n, found[n]) // 2 >= _LEAST), None)
        if halved is None:
            return None
        tried = {**values, halved: values.get(halved, found[halved]) // 2}
        try:
            new = _cost(sources.apply(source, {name: str(value) for name, value in tried.items()}))
        except UsageError:
            new = None
        if new is None or new >= cost:
            stuck.add(halved)
        else:
            values, cost = tried, new
            if "batch" in halved and values[halved] <= 2 * _LEAST:
                stuck.add(halved)
    return values if cost is not None else None


def _cost(source: str) -> float | None:
    """What a call takes of what it may, without its data; None where it does not run."""
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
    return max(flops.get_total_flops() / _MOST_FLOPS, written.bytes / _MOST_BYTES)
