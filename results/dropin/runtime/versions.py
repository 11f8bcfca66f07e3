"""Whether a framework that a package is used with is of the release that it was made for."""

from importlib.metadata import PackageNotFoundError, version

from .envelope import release


def require(distribution: str, wanted: str) -> None:
    """Raises ImportError where another release is installed, or none."""
    fix = f"pip install '{distribution}=={wanted}.*'"
    try:
        found = version(distribution)
    except PackageNotFoundError:
        raise ImportError(f"{distribution} is not installed: {fix}") from None
    if release(found) != release(wanted):
        raise ImportError(f"this is for {distribution} {wanted}, here is {found}: {fix}")
