"""Metrics: their names follow the conventions, and they say what happened."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from service.configuration.config import BatchLimits, QueueLimits
from service.observability.buckets import geometric
from service.observability.lanes import LaneObservations
from service.observability.metrics import Metrics
from service.observability.state import ServerState
from service.serving.lanes import Lanes
from service.serving.readiness import Readiness, State
from service.serving.served import IndexTable
from tests.service.fake_retriever import FakeRetriever, served


def watched(*indexes: Any) -> tuple[Metrics, Readiness]:
    metrics, readiness, table = Metrics(), Readiness([]), IndexTable()
    for index in indexes:
        table.put(index)
    lanes = Lanes(BatchLimits(), QueueLimits(), lambda device: LaneObservations(metrics, device))
    metrics.watch(ServerState("1.2.3", readiness, lanes, table))
    return metrics, readiness


def families(metrics: Metrics) -> dict[str, Any]:
    text, _ = metrics.render()
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def test_names_follow_the_conventions() -> None:
    metrics, _ = watched(served(FakeRetriever()))
    found = families(metrics)
    assert len(found) > 30
    for name, family in found.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert family.documentation.strip(), name
        if name.startswith("genret_"):
            assert family.documentation.endswith("."), name
            assert not name.endswith(("_ms", "_mib", "_count", "_sum", "_bucket", "_total")), name
        if "seconds" in name.split("_"):
            assert name.endswith("_seconds"), name
        assert not any(sample.name.endswith("_created") for sample in family.samples)
