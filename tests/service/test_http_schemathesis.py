"""Requests made from the OpenAPI document, good and bad: no server errors, replies as it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import settings

from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import serving_in_a_thread
from tests.service.openapi_cases import document, quiet


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_in_a_thread(FakeRetriever(), max_request_seconds=20) as found:
        yield found


few, many = document(coverage=False), document(coverage=True)


@few.parametrize()
@settings(quiet, max_examples=40)
def test_some_requests_are_answered_or_refused_as_documented(case: schemathesis.Case, address: str) -> None:
    case.call_and_validate(base_url=address)


@pytest.mark.slow
@many.parametrize()
@settings(quiet, max_examples=100)
def test_many_requests_are_answered_or_refused_as_documented(case: schemathesis.Case, address: str) -> None:
    case.call_and_validate(base_url=address)
