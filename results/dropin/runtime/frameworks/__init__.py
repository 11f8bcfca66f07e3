"""Frameworks whose layers are replaced in ways of their own: Hugging Face's kernels, torchtitan, Megatron."""
