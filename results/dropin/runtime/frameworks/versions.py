"""Release of a framework that a package is used with: it must be the one it was made for."""

from importlib.metadata import PackageNotFoundError, version

from ..envelope import release


def require(distribution: str, wanted: str) -> None:
    """Raise ImportError if another release is installed, or none."""
    fix = f"pip install '{distribution}=={wanted}.*'"
    try:
        found = version(distribution)
    except PackageNotFoundError:
        raise ImportError(f"{distribution} is not installed: {fix}") from None
    if release(found) != release(wanted):
        raise ImportError(f"the package needs {distribution} {wanted}, and {found} is installed: {fix}")
