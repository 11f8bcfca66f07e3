"""Python source as a syntax tree, from any thread."""

import ast
import threading

_ALONE = threading.Lock()


def parsed(source: str) -> ast.Module:
    """Parse source as Python reads a file, one thread at a time: a byte order mark is ignored.

    Interleaved threads make CPython raise SystemError now and then ("AST constructor recursion depth
    mismatch", https://github.com/python/cpython/issues/106905).
    """
    with _ALONE:
        return ast.parse(source.removeprefix("\ufeff"))
