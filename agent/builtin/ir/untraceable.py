"""Error of references that stay as they are; apart from the tracer, so that a coder needs no torch.export."""


class Untraceable(Exception):  # noqa: N818 - a property of the reference, not a fault
    """The reference holds something that the builtin coder cannot express; the message says what."""
