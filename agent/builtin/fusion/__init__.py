"""Fusion: which computations share a kernel, and which values are recomputed rather than stored."""
