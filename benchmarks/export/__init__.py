"""Packages of verified kernels."""
