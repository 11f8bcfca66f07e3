"""The forms that a package may have."""

from enum import StrEnum

UNSTATED = "unstated"  # a licence


class Format(StrEnum):
    torch = "torch"  # a project that pip installs
    hf = "hf"  # a repository of Hugging Face's `kernels`
    torchtitan = "torchtitan"  # as torch, with overrides for torchtitan's configs

    @property
    def window(self) -> str:
        """The release that such packages are for; "" where there is none to say."""
        return _WINDOWS.get(self, "")


_WINDOWS = {Format.torchtitan: "0.3"}
