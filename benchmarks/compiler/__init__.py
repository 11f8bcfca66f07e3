"""Kernels of the builtin coder: speed, coverage, and what can be known of them without a GPU."""
