"""Triton for the cuda target."""
