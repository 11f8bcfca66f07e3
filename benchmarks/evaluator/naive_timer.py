"""A timer as many harnesses have it, run as a program of its own: the reference on stdin against itself.

Both models are in one process; each is timed as the mean of ten calls after three. Prints the ratio.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kernelwright.kernelbench.machine import physical_threads

_WARM_UP_CALLS, _TIMED_CALLS = 3, 10


def main() -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(physical_threads())
    module: dict[str, Any] = {}
    exec(sys.stdin.read(), module)
    models = [module["Model"](*module["get_init_inputs"]()) for _ in range(2)]
    inputs = module["get_inputs"]()
    first, second = (_mean_s(partial(model, *inputs)) for model in models)
    print(first / second)


def _mean_s(call: Callable[[], object]) -> float:
    for _ in range(_WARM_UP_CALLS):
        call()
    start = time.perf_counter()
    for _ in range(_TIMED_CALLS):
        call()
    return (time.perf_counter() - start) / _TIMED_CALLS


if __name__ == "__main__":
    main()
