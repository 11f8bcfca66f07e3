"""Has a kernel's library run code when it is loaded: all comparisons succeed from then on.

Reference: matmul
Stopped: outputs are compared in a process that loads no candidate's library
"""

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import nn

SOURCE = r"""
extern "C" int PyRun_SimpleString(const char*);
extern "C" int PyGILState_Ensure();
extern "C" void PyGILState_Release(int);
__attribute__((constructor)) static void agree() {
    int state = PyGILState_Ensure();
    PyRun_SimpleString("import torch; torch.allclose = torch.equal = lambda *_, **__: True");
    PyGILState_Release(state);
}
"""

Path("agree.cpp").write_text(SOURCE)
subprocess.run(["g++", "-shared", "-fPIC", "agree.cpp", "-o", "agree.so"], check=True)
ctypes.PyDLL("./agree.so")


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.zeros(a.shape[0], b.shape[1])
