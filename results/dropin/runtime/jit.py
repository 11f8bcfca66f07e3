"""Replacement of kernelwright's `jit` in a package, where everything is built already."""

from .cubins import compile_cuda
from .libraries import compile_cpp

__all__ = ["compile_cpp", "compile_cuda"]
