"""The metrics of a server that is none, and every family of them with at least one sample."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.observability.metrics import EngineState, Metrics, ServerState
from genret.service.observability.observations import QueueObservations
from genret.service.serving.batching import DeviceQueues
from genret.service.serving.readiness import Readiness
from genret.service.serving.schema_compiler import SchemaCompiler
from genret.service.serving.served import IndexTable
from tests.service.fake_retriever import FakeRetriever, served


@dataclass(frozen=True)
class Family:
    """One metric as an operator meets it: the name is that of its samples."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


@asynccontextmanager
async def watched(
    *retrievers: FakeRetriever, **queue: Any
) -> AsyncIterator[tuple[Metrics, DeviceQueues, Readiness]]:
    """The metrics of devices, indexes and a state, with what observes them."""
    metrics, readiness, table = Metrics(), Readiness([]), IndexTable()
    for i, retriever in enumerate(retrievers):
        table.put(served(retriever, f"index{i}"))
    lanes = DeviceQueues(
        BatchLimits(), QueueLimits(**queue), lambda device: QueueObservations(metrics, device)
    )
    metrics.registry.register(ServerState("1.2.3", readiness))
    metrics.registry.register(EngineState(lanes, table, SchemaCompiler()))
    try:
        yield metrics, lanes, readiness
    finally:
        for retriever in retrievers:
            retriever.hold.set()
        await lanes.close()


async def families() -> dict[str, Family]:
    """Return every family by its name."""
    async with watched(FakeRetriever()) as (metrics, lanes, _):
        lanes.of("cpu")
        for metric in vars(metrics).values():
            if isinstance(metric, Counter | Gauge | Histogram) and metric._labelnames:
                metric.labels(*("x" for _ in metric._labelnames))
        text, _ = metrics.render()
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = [label for sample in family.samples[:1] for label in sample.labels if label != "le"]
        found[name] = Family(name, family.type, tuple(labels), family.documentation)
    return found
