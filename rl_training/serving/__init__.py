"""A policy behind an OpenAI-compatible endpoint, so that it writes kernels as any other model does."""
