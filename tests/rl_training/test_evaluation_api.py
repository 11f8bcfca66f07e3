"""The OpenAPI description of the service, held against what it does, by schemathesis."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from kernelwright.rl_training.serving.evaluator.app import application
from tests.helpers.rl_training.served import FilePool, service

schemathesis = pytest.importorskip("schemathesis", reason="it comes with the extra dev")
TOKEN = "token-of-schemathesis"
# All but that a request which fits its schema is accepted: it may name a task or scheme that there is not.
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance", "negative_data_rejection", "missing_required_header", "ignored_auth",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_route_does_what_it_says(tmp_path: Path) -> None:
    schemathesis.checks.load_all_checks()
    checks = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    seen: set[str] = set()

    def check(case: Any) -> None:
        seen.add(case.operation.label)
        response = case.call(headers={"Authorization": f"Bearer {TOKEN}"})
        if response.status_code != 413:  # which schemathesis does not take for a refusal
            case.validate_response(response, checks=checks)

    with service(tmp_path / "requests.db", FilePool(), tokens=(TOKEN,), capacity=100_000) as made:
        app = application(made)
        schema = schemathesis.openapi.from_asgi("/openapi.json", app)
        for operation in schema.get_all_operations():
            for mode in modes:
                cases = operation.ok().as_strategy(generation_mode=mode)
                tried = settings(
                    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
                )(given(cases)(check))
                # A route without parameters cannot be asked wrongly.
                with suppress(*([Unsatisfiable] if mode is modes[1] else [])):
                    tried()
    assert len(seen) == sum(len(methods) for methods in app.openapi()["paths"].values()) > 15
