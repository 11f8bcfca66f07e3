"""A server under load: 50 clients, 5,000 requests, workers that die; and one that is killed with -9 again and again.

Nothing is lost, and nothing counts twice.
"""

import itertools
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from kernelwright.kernelbench.remote.client import EvaluationClient
from kernelwright.kernelbench.remote.wire import EvaluationRequest, EvaluationResult
from kernelwright.rl_training.serving.evaluator.ledger import Ledger
from tests.helpers.rl_training.served import TASK, FilePool, file, process, served

CLIENTS = 50


def request(number: int) -> EvaluationRequest:
    """A request that no other is equal to."""
    wrong = "wrong" if number % 7 == 0 else ""
    return EvaluationRequest(
        task=TASK, source=file(1 + number / 1000, f"{wrong} {number}"), scheme="kevin", key=str(number)
    )


def asked_by_many(url: str, count: int) -> dict[int, EvaluationResult]:
    """Results of so many requests by their number, each of CLIENTS with connections of its own."""
    numbers, lock = itertools.count(), threading.Lock()
    found: dict[int, EvaluationResult] = {}

    def work(_: int) -> None:
        client = EvaluationClient(url, away_s=120.0)
        while (number := next(numbers)) < count:
            result = client.evaluate(request(number))
            with lock:
                assert number not in found
                found[number] = result
        client.close()

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(work, range(CLIENTS)))
    return found


def require_right(found: dict[int, EvaluationResult], count: int) -> Counter[str]:
    """Each request has the answer to it, or none; return how many have which."""
    assert sorted(found) == list(range(count)) and len({each.id for each in found.values()}) == count
    for number, result in found.items():
        if result.verdict is None:
            assert (result.reward, result.no_verdict) == (None, "evaluator")
        elif number % 7 == 0:
            assert (result.verdict, result.reward) == ("wrong_output", 0.0)
        else:
            assert result.speedup is not None and result.speedup.eager is not None
            assert result.speedup.eager.median == pytest.approx(1 + number / 1000)
            assert result.reward is not None and result.reward > 0.3
    return Counter(str(each.verdict or each.no_verdict) for each in found.values())


def counted(url: str) -> Counter[str]:
    """Counts of ended requests, as the server tells them."""
    lines = httpx2.get(f"{url}/metrics").text.splitlines()
    totals = [line for line in lines if line.startswith("kernelwright_evaluations_total{")]
    return Counter(
        {line.partition('"')[2].partition('"')[0]: int(float(line.split()[-1])) for line in totals}
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_5000_requests_of_50_clients_while_workers_die(tmp_path: Path) -> None:
    # Of speedups above 3 each is measured twice: both measurements are of one file.
    pool = FilePool(deaths=0.05)
    with served(tmp_path / "requests.db", pool, workers=16, capacity=40) as url:  # too few places for all
        found = asked_by_many(url, 5000)
        outcomes = require_right(found, 5000)
        assert counted(url) == outcomes and outcomes.total() == 5000
    assert pool.died > 100
    assert outcomes["evaluator"] < 25  # three deaths in a row
    ledger = Ledger(tmp_path / "requests.db")
    assert ledger.counts() == {"done": 5000 - outcomes["evaluator"], "failed": outcomes["evaluator"]}
    ledger.close()
    twice = [number for number, result in found.items() if result.verdict == "correct" and number > 2050]
    unsure = set(range(1900, 2051))  # whose interval may lie on either side of 3
    once = [number for number in found if number not in twice and number not in unsure]
    for number in once:
        if found[number].verdict is not None:
            assert pool.counts[_sha(number)] == 1


def _sha(number: int) -> str:
    import hashlib

    source = request(number).source
    assert source is not None
    return hashlib.sha256(source.encode()).hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_requests_of_a_server_that_is_killed_three_times(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    database, url = tmp_path / "requests.db", f"http://127.0.0.1:{port}"
    done = threading.Event()
    found: dict[int, EvaluationResult] = {}

    def ask() -> None:
        found.update(asked_by_many(url, 400))
        done.set()

    thread = threading.Thread(target=ask)
    for killed in range(4):
        with process(database, port, seconds=0.05) as server:
            if not killed:
                thread.start()
            if killed < 3:
                time.sleep(1.5)
                assert not done.is_set()
                server.kill()
            else:
                thread.join(300)
    outcomes = require_right(found, 400)
    assert outcomes == Counter({"correct": 342, "wrong_output": 58})
    ledger = Ledger(database)
    assert ledger.counts() == {"done": 400}
    ledger.close()
    begun = Counter((tmp_path / "requests.log").read_text().split())
    assert len(begun) == 400
    assert sum(begun.values()) - 400 <= 3 * 4  # again were only those that were under way
