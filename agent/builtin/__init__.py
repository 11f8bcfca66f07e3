"""The builtin coder: honest compiler work that writes fused kernels without a language model."""
