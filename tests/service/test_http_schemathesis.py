"""Requests made from the OpenAPI document, good and bad: no server errors, replies as it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig

from service.gateway.app import OPENAPI_FILE
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import serving_in_a_thread

CONFIG = {
    # Rules that tie fields together (min_mass goes with DISC alone) are beyond the schemas.
    "checks": {
        "positive_data_acceptance": {"enabled": False},
        # The document allows deadlines that nobody can meet.
        "not_a_server_error": {"expected-statuses": ["2xx", "4xx", "504"]},
    },
    # What is wrong with an item of several is the item's own outcome, in a reply of status 200.
    "operations": [
        {"include-path": path, "checks": {"negative_data_rejection": {"enabled": False}}}
        for path in ("/v1/batchRetrieve", "/v1/link")
    ],
    # Headers and parameters that nobody asks for are the client's affair.
    "generation": {"deterministic": True, "allow-extra-parameters": False},
}


def document(coverage: bool) -> Any:
    config = SchemathesisConfig.from_dict({**CONFIG, "phases": {"coverage": {"enabled": coverage}}})
    # Bodies of one JSON object a line are beyond the tool.
    return schemathesis.openapi.from_path(OPENAPI_FILE, config=config).exclude(path="/v1/retrieveStream")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_in_a_thread(FakeRetriever(), max_request_seconds=20) as found:
        yield found


few, many = document(coverage=False), document(coverage=True)
quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))


@few.parametrize()
@settings(quiet, max_examples=40)
def test_some_requests_are_answered_or_refused_as_documented(case: schemathesis.Case, address: str) -> None:
    case.call_and_validate(base_url=address)


@pytest.mark.slow
@many.parametrize()
@settings(quiet, max_examples=200)
def test_many_requests_are_answered_or_refused_as_documented(case: schemathesis.Case, address: str) -> None:
    case.call_and_validate(base_url=address)
