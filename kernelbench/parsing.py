"""Python source as a syntax tree, from any thread."""

import ast
import threading

_ALONE = threading.Lock()


def parsed(source: str) -> ast.Module:
    """What `ast.parse` gives or raises, to one thread at a time.

    Threads that take turns within it make CPython raise SystemError now and then ("AST constructor recursion
    depth mismatch", https://github.com/python/cpython/issues/106905).
    """
    with _ALONE:
        return ast.parse(source)
