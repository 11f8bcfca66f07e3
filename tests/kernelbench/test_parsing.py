import ast
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelwright.kernelbench import parsing


def test_one_thread_parses_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, together = threading.Semaphore(1), []
    parse = ast.parse

    def watched(source: str) -> ast.Module:
        together.append(not inside.acquire(blocking=False))
        try:
            return parse(source)
        finally:
            inside.release()

    monkeypatch.setattr(ast, "parse", watched)
    with ThreadPoolExecutor(8) as executor:
        trees = list(executor.map(parsing.parsed, ["x = [1, (2, 3)]\n" * 200] * 50))
    assert len(trees) == 50 and not any(together)
    with pytest.raises(SyntaxError):
        parsing.parsed("x =")
