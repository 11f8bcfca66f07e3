"""Why a profiler says nothing."""


class Unavailable(Exception):  # noqa: N818 - what happened
    """A profiler cannot be used here, or not on this; `str()` says why, and how to get it."""
