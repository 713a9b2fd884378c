"""The OpenAPI document as schemathesis makes requests from it."""

from __future__ import annotations

import json
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig

from genret.service.gateway.http_app import OPENAPI_FILE

quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))
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
    made = json.loads(OPENAPI_FILE.read_text(encoding="utf-8"))
    for path in ("/v1/completions", "/v1/chat/completions"):
        # The schema is that of the stream's whole text; the tool would hold every event to it.
        del made["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    # Bodies of one JSON object a line are beyond the tool.
    return schemathesis.openapi.from_dict(made, config=config).exclude(path="/v1/retrieveStream")
