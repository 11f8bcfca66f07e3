"""Version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version


def kernelwright_version() -> str:
    """Return the version, or "unknown" where the source tree is not installed."""
    try:
        return version("kernelwright")
    except PackageNotFoundError:
        return "unknown"
