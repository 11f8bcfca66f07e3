"""CUDA C++ for the cuda target."""
