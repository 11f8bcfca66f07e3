"""What the overrides of a package for torchtitan have in common."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .envelope import release
from .kernel import Kernel
from .swap import why_not


def require(wanted: str) -> None:
    """Raises ImportError where torchtitan is not of this release, whose overrides these are."""
    try:
        found = version("torchtitan")
    except PackageNotFoundError:
        raise ImportError(f"torchtitan is not installed: pip install 'torchtitan=={wanted}.*'") from None
    if release(found) != release(wanted):
        raise ImportError(
            f"this override is for torchtitan {wanted}, here is {found}: pip install 'torchtitan=={wanted}.*'"
        )


def fitting(config: Any, kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """The names of those that compute what the layer of this config does; why others do not is logged."""
    layer = config.build()
    reasons = {kernel: why_not(kernel, layer) for kernel in kernels}
    for kernel, reason in reasons.items():
        if reason:
            kernel.say(reason)
    return tuple(kernel.name for kernel, reason in reasons.items() if not reason)
