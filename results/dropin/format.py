"""The forms that a package may have."""

from enum import StrEnum

UNSTATED = "unstated"  # a licence


class Format(StrEnum):
    torch = "torch"  # a project that pip installs
    hf = "hf"  # a repository of Hugging Face's `kernels`
    torchtitan = "torchtitan"  # as torch, with overrides for torchtitan's configs
    megatron = "megatron"  # as torch, with layer specs for Megatron-core

    @property
    def module(self) -> str:
        """The module that such packages have for their framework; "" for none."""
        return {Format.torchtitan: "titan.py", Format.megatron: "megatron.py"}.get(self, "")

    @property
    def window(self) -> str:
        """The framework's release that such packages are for; "" where there is none to say."""
        return {Format.torchtitan: "0.3", Format.megatron: "0.16"}.get(self, "")
