"""Strength of published correctness checks: right kernels, mutants of these, and who accepts them."""
