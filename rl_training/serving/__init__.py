"""A policy behind an OpenAI-compatible endpoint, so that it writes kernels like any other model."""
