"""Every family of metrics with at least one sample, as a busy server shows them."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.observability.metrics import EngineState, Metrics, ServerState
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


async def full_metrics() -> tuple[Metrics, DeviceQueues]:
    """Return metrics in which every family has a sample."""
    metrics, table = Metrics(), IndexTable()
    table.put(served(FakeRetriever()))
    lanes = DeviceQueues(BatchLimits(), QueueLimits())
    lanes.of("cpu")
    metrics.registry.register(ServerState("1.2.3", Readiness([])))
    metrics.registry.register(EngineState(lanes, table, SchemaCompiler()))
    for metric in vars(metrics).values():
        if isinstance(metric, Counter | Gauge | Histogram) and metric._labelnames:
            metric.labels(*("x" for _ in metric._labelnames))
    return metrics, lanes


async def families() -> dict[str, Family]:
    """Return every family by its name."""
    metrics, lanes = await full_metrics()
    text, _ = metrics.render()
    await lanes.close()
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = [label for sample in family.samples[:1] for label in sample.labels if label != "le"]
        found[name] = Family(name, family.type, tuple(labels), family.documentation)
    return found
