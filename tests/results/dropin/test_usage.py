"""Numbers of calls, counted and read by several threads."""

import threading
import time
from types import SimpleNamespace
from typing import Any

from kernelwright.results.dropin.runtime.usage import Calls

KERNEL: Any = SimpleNamespace(name="norm", key="norm", say=lambda why: None)
EACH = 200


class Yielding(dict[str, int]):
    """Lets another thread run where one may: after a number was read, before it is written."""

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        time.sleep(0)
        return found


def test_no_call_is_lost_and_a_report_does_not_change() -> None:
    calls, failed = Calls(), []
    calls.by_kernel, calls.by_layer = Yielding(), Yielding()

    def count(number: int) -> None:
        for place in range(EACH):
            calls.add(KERNEL, f"{number} {place % 7}" if place % 2 else "")

    def read() -> None:
        try:
            for _ in range(EACH):
                found = calls.so_far()
                assert sum(found.by_kernel.values()) + sum(found.by_layer.values()) <= 4 * EACH
        except RuntimeError as error:
            failed.append(error)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert calls.by_kernel == {"norm": 2 * EACH} and sum(calls.by_layer.values()) == 2 * EACH
