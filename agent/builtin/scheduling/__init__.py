"""Scheduling: the loops of a fused region, and the launches of kernels."""
