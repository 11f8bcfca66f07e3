"""What CUDA C++ kernels ask of memory, seen in emulation."""
