"""Why machine code cannot be read."""


class Unreadable(Exception):  # noqa: N818 - what happened
    """There is no tool for it, or the tool cannot read it; `str()` says which, and how to get it."""
