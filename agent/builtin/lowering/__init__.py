"""Lowering of a graph of ATen calls to pointwise computations, reductions and library calls."""
