"""What a launch costs on the host, over the driver's own call, without a GPU: compile_cuda's, and Triton's.

    python -m tests.helpers.gpu.launch_cost

It takes the tests' own driver, whose launches are nearly free. Tensors are the CPU's, so that torch is as fast as
it is; their device is -1 and not 0 then, and what torch would say of a GPU stands in its place.
"""

import ctypes
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.helpers.gpu.fake_driver import fake_driver, library

ROOT = Path(__file__).parents[3]
CALLS, TRIES = 1000, 100
FILE = ROOT / "agent/builtin/codegen/triton/templates/file.py.j2"
TRITON = """
import torch
import triton
import triton.language as tl

@Launcher
@triton.jit
def copied(x, y):
    tl.store(y, tl.load(x))
"""


def measured(folder: Path) -> dict[str, float]:
    """Microseconds of a launch, in each way; measured in a process of its own."""
    words = [sys.executable, "-m", "tests.helpers.gpu.launch_cost", "here"]
    with fake_driver(folder):
        environment = {
            **os.environ,
            "FAKE_CUDA_PAGE": str(folder / "page"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "TRITON_LIBCUDA_PATH": str(library().parent),
            "FAKE_CUDA": str(library()),
        }
        environment.pop("TRITON_INTERPRET", None)
        done = subprocess.run(words, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def best_us(call: Callable[[], object]) -> float:
    """The best of many tries, which a busy machine changes least."""
    best = float("inf")
    for _ in range(TRIES):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - started)
    return 1e6 * best / CALLS


def ways() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield launches of a kernel with two tensors and two numbers, and of one of Triton's with two tensors."""
    import torch
    from cuda.bindings import driver

    from kernelwright.kernelbench.jit import device
    from kernelwright.kernelbench.jit.cuda import CudaModule, kernels

    cuda: Any = torch.cuda
    cuda.is_available, cuda.current_device = lambda: True, lambda: 0
    cuda.get_device_capability = lambda *_: (9, 0)
    of_c: Any = torch._C
    of_c._cuda_getDevice, of_c._cuda_getCurrentRawStream = lambda: -1, lambda _: 0

    source = 'extern "C" __global__ void scaled_relu(const float* x, float* y, int n, float factor) {}'
    loaded = device.DeviceModule(b"\177ELF", 0)
    loaded.index = -1
    module = CudaModule(kernels(source, {}), loaded)
    x, y, n = torch.ones(1), torch.empty(1), 1
    module.scaled_relu((1,), (1,), (x, y, n, 2.0))
    assert y.item() == 2.0
    yield "compile_cuda", lambda: module.scaled_relu((1,), (1,), (x, y, n, 2.0))

    kernel = loaded.bind(module.scaled_relu.signature)
    kernel._pack(x, y, n, 2.0)
    launch = functools.partial(driver.cuLaunchKernel, kernel._function, 1, 1, 1, 1, 1, 1, 0, 0)
    yield "cuLaunchKernel, arguments prepared", lambda: launch(kernel._address, 0)
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_float)
    yield "cuLaunchKernel, as tuples", lambda: launch(((x.data_ptr(), y.data_ptr(), n, 2.0), types), 0)

    text = FILE.read_text()
    names: dict[str, Any] = {}
    written = Path(tempfile.mkdtemp()) / "copied.py"  # for Triton reads the file
    written.write_text(text[text.index("class Launcher") : text.index("{% for")] + TRITON)
    exec(compile(written.read_text(), str(written), "exec"), names)
    copied = names["copied"]
    copied[(1,)](x, y)
    assert y.item() == 1.0
    yield "Triton's kernel[grid]", lambda: copied.kernel[(1,)](x, y)
    yield "Triton's, kept", lambda: copied[(1,)](x, y)


def main() -> None:
    if sys.argv[1:] == ["here"]:
        ctypes.CDLL(os.environ["FAKE_CUDA"], mode=ctypes.RTLD_GLOBAL)
        print(json.dumps({name: best_us(call) for name, call in ways()}))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, us in measured(Path(folder)).items():
            print(f"{us:6.2f} us  {name}")


if __name__ == "__main__":
    main()
