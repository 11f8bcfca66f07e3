"""Forms of a package."""

from enum import StrEnum

UNSTATED = "unstated"  # a licence


class Format(StrEnum):
    torch = "torch"  # a project that pip installs
    hf = "hf"  # a repository of Hugging Face's `kernels`
    torchtitan = "torchtitan"  # as torch, with overrides for torchtitan's configs
    megatron = "megatron"  # as torch, with layer specs for Megatron-core
    vllm = "vllm"  # as torch, a plugin of vLLM

    @property
    def module(self) -> str:
        """Name of the module that adapts such packages to their framework; "" for none."""
        modules = {Format.torchtitan: "titan.py", Format.megatron: "megatron.py", Format.vllm: "vllm.py"}
        return modules.get(self, "")

    @property
    def window(self) -> str:
        """Release of the framework that such packages are for; "" if there is none."""
        return {Format.torchtitan: "0.3", Format.megatron: "0.16"}.get(self, "")
