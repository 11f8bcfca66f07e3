"""A preflight says in seconds whether a model can be used; what it learns and costs is the run's."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelwright import cli
from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, Reply
from kernelwright.agent.llm.endpoint.preflight import preflight
from kernelwright.agent.llm.endpoint.prices import Price, Prices
from kernelwright.agent.llm.model import Endpoint, EndpointUnusable, Sampling
from kernelwright.agent.llm.session import ModelSession, Roles, Terms
from kernelwright.agent.spending.budget import BudgetSpent, SpendingLimits
from kernelwright.results.store.database import RunDatabase
from tests.helpers.anywhere import TARGET
from tests.helpers.model_calls import call

SAMPLING = Sampling(model="m", temperature=0.3, max_tokens=16384)
READY = Reply('{"ready": true}')
ROLES = Roles(coder=SAMPLING, judge=SAMPLING, languages=("cpp",))


def modest(body: dict[str, Any], number: int) -> Reply | ErrorResponse:
    """Refuse one parameter after the other."""
    if "temperature" in body:
        return ErrorResponse(400, "'temperature' is not supported with this model")
    if "response_format" in body:
        return ErrorResponse(422, body={"detail": [{"loc": ["body", "response_format"], "msg": "no"}]})
    if body["max_tokens"] > 8192:
        return ErrorResponse(400, "the valid range of max_tokens is [1, 8192]")
    return READY


def test_one_call_learns_what_the_endpoint_refuses(endpoint: FakeEndpoint) -> None:
    endpoint.script = modest
    said: list[str] = []
    found = preflight(Endpoint(base_url=endpoint.base_url), [SAMPLING, SAMPLING], said.append)
    assert len(found.calls) == 1 and len(endpoint.requests) == 4 and len(said) == 3
    assert said[0].startswith("m: temperature is left out") and "is not supported" in said[0]
    body = found.requests["m"].body(call(sampling=SAMPLING, reply_schema={"type": "object"}))
    assert body["max_tokens"] == 8192 and not {"temperature", "response_format"} & set(body)


def test_two_models_are_two_calls_and_a_listed_context_is_kept_to(endpoint: FakeEndpoint) -> None:
    endpoint.say(READY)
    endpoint.models = [{"id": "m", "max_model_len": 10_000}, {"id": "other"}]
    other = SAMPLING.model_copy(update={"model": "other"})
    found = preflight(Endpoint(base_url=endpoint.base_url), [SAMPLING, other], print)
    limits = {body["model"]: body["max_tokens"] for body in endpoint.requests}
    assert set(limits) == {"m", "other"} and 9800 < limits["m"] < 10_000 and limits["other"] == 16384
    assert found.requests["m"].context == 10_000 and found.requests["other"].context is None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ErrorResponse(401, "Incorrect API key provided"), "Incorrect API key"),
        (ErrorResponse(404, "The model `m` does not exist"), "does not exist"),
        (ErrorResponse(402, "Insufficient credits"), "Insufficient credits"),
        (ErrorResponse(400, "this service is for members"), "for members"),
        (
            ErrorResponse(405, body="<html><style>p {}</style><p>Method not allowed</p></html>"),
            "Method not allowed",
        ),
    ],
    ids=lambda value: str(getattr(value, "status", "")),
)
def test_a_run_that_cannot_work_ends_in_seconds_and_leaves_nothing_behind(
    fault: ErrorResponse,
    words: str,
    endpoint: FakeEndpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    endpoint.say(fault)
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
    out = tmp_path / "out"
    command = ["run", "builtin:level1/softmax", "--coder", "llm", "--model", "m", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["kernelwright", *command])
    started = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and words in said and "doctor --model" in said
    assert len(said.strip().splitlines()) == 1 and not out.exists() and time.monotonic() - started < 20


def test_an_endpoint_that_is_busy_is_waited_for_by_the_run(endpoint: FakeEndpoint) -> None:
    endpoint.say(ErrorResponse(429, "slow down", headers={"retry-after-ms": "20"}))
    said: list[str] = []
    found = preflight(Endpoint(base_url=endpoint.base_url, patience_s=0.2), [SAMPLING], said.append)
    assert not found.calls and "slow down" in said[0]


def test_nobody_listening_is_no_busy_endpoint() -> None:
    server = FakeEndpoint()
    server._server.server_close()
    with pytest.raises(EndpointUnusable):
        preflight(Endpoint(base_url=server.base_url, patience_s=0.2), [SAMPLING], print)


def test_its_cost_is_part_of_the_budget(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    endpoint.say(READY)
    price = Price(prompt=1.0, completion=10.0)  # 100 and 50 tokens: $0.0006
    limits = SpendingLimits(usd=0.0005)
    terms = Terms(Endpoint(base_url=endpoint.base_url), Prices({"m": price}), limits, SpendingLimits())
    found = terms.preflight(ROLES, (), print)
    with RunDatabase.create(tmp_path / "run.db", settings={}, target=TARGET) as database:
        with ModelSession.asking(ROLES, terms, database, found=found) as models:
            assert models.budget.spent_by(None) == "$0.0005 are spent"
            with pytest.raises(BudgetSpent):
                models._runtime.wait(models._model.complete(call()))
        [record] = database.llm_calls()
        assert record.role == "preflight" and record.usd == pytest.approx(0.0006)
        assert terms.preflight(ROLES, database.llm_calls(), print) is None, "nothing is left for another"


def test_doctor_says_what_a_model_s_endpoint_accepts(
    endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(body: dict[str, Any], number: int) -> Reply | ErrorResponse:
        answer = modest(body, number)
        calls = Reply("", finish="tool_calls")
        return calls if "tools" in body and isinstance(answer, Reply) else answer

    endpoint.script = script
    endpoint.models = [{"id": "gpt-4.1", "max_model_len": 32768}]
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
    monkeypatch.setattr(sys, "argv", ["kernelwright", "doctor", "--model", "gpt-4.1", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert {name for name, item in found.items() if not item["on"]} == {"temperature", "response_format"}
    assert found["limit of replies"]["why"] == "max_tokens 8192" and found["tools"]["why"] == "called"
    assert found["context length"]["why"] == "32768 tokens" and "$2 and $8" in found["price"]["why"]
