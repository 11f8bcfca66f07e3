"""The OpenMP runtime of torch, which kernels must share.

Two runtimes in one process each start a thread per core, and `torch.set_num_threads` would reach only one of
them. torch's wheels bring their own libgomp, some under another name (libgomp-a34b3233.so.1), so that
`-fopenmp` alone may link the system's. A kernel is linked against torch's file by path instead: it then asks
for that file's soname, and the loader returns the copy that is already mapped.
"""

import ctypes
from functools import cache
from pathlib import Path


class _Location(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@cache
def torch_runtime() -> Path | None:
    """Return the file that implements torch's OpenMP calls; None for a torch built without OpenMP."""
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = ctypes.CDLL(str(library)).omp_get_max_threads
    except (OSError, AttributeError):
        return None
    location = _Location()
    found = ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(location))
    return Path(location.file.decode()) if found and location.file else None


def link_words() -> tuple[str, ...]:
    """Return the link words for `-fopenmp` code; `-fopenmp` itself would add the compiler's own runtime."""
    runtime = torch_runtime()
    return ("-Wl,--as-needed", str(runtime)) if runtime else ("-Wl,--as-needed", "-fopenmp")
