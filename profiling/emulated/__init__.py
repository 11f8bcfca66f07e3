"""Memory requests of CUDA C++ kernels, counted in emulation."""
