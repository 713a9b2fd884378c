"""Metrics of what exists anyway: queues, indexes, caches, readiness. Read at scrapes, never copied before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service.serving.caches import CacheCounts, CachingRetriever
from service.serving.lanes import Lanes
from service.serving.readiness import Readiness, State
from service.serving.served import IndexTable, ServedIndex


class ServerState(Collector):
    """Reads a server's state for `Metrics.watch`. To be scraped on the server's event loop.

    Args:
        version: Of the software.
        readiness: Whether requests are taken.
        lanes: The devices' queues.
        indexes: What is served.
    """

    def __init__(self, version: str, readiness: Readiness, lanes: Lanes, indexes: IndexTable) -> None:
        self._version = version
        self._readiness = readiness
        self._lanes = lanes
        self._indexes = indexes

    def collect(self) -> Iterator[Metric]:
        """Yield every family, also those without any sample."""
        yield InfoMetricFamily("genret_build", "The running software.", {"version": self._version})
        ready = GaugeMetricFamily("genret_ready", "1 while requests are taken, 0 while warming or draining.")
        ready.add_metric([], float(self._readiness.state is State.READY))
        yield ready
        yield from self._queues()
        served = [self._indexes.resolve(index.name) for index in self._indexes.describe()]
        yield from _indexes(served)
        yield from _filter_caches(served)
        yield from _grammar_caches(served)

    def _queues(self) -> Iterable[Metric]:
        depth = GaugeMetricFamily("genret_queue_depth", "Requests that wait for a batch.", labels=["device"])
        tokens = GaugeMetricFamily(
            "genret_queue_tokens",
            "Work accepted and not finished, running batches included, tokens.",
            labels=["device"],
        )
        patient = GaugeMetricFamily(
            "genret_queue_patient",
            "Items of batches and streams that wait for room in the queue.",
            labels=["device"],
        )
        for lane in self._lanes.all():
            depth.add_metric([lane.device], lane.batcher.num_waiting)
            patient.add_metric([lane.device], lane.patience.num_waiting)
            tokens.add_metric([lane.device], lane.admission.num_tokens)
        return depth, patient, tokens


def _indexes(served: list[ServedIndex]) -> Iterable[Metric]:
    info = InfoMetricFamily(
        "genret_index",
        "The index versions that are served.",
        labels=["name", "version", "digest", "model", "device"],
    )
    rows = GaugeMetricFamily("genret_index_rows", "Titles of an index, as it stores them.", labels=["name"])
    entities = GaugeMetricFamily("genret_index_entities", "Entities of an index.", labels=["name"])
    loaded = GaugeMetricFamily(
        "genret_index_loaded_timestamp_seconds",
        "When the served version of an index was opened, seconds since 1970.",
        labels=["name"],
    )
    for index in served:
        d = index.description
        info.add_metric([d.name, d.version, d.digest, d.model, d.device], {})
        rows.add_metric([d.name], d.num_rows)
        entities.add_metric([d.name], d.num_entities)
        loaded.add_metric([d.name], d.loaded_at)
    return info, rows, entities, loaded


def _filter_caches(served: list[ServedIndex]) -> Iterable[Metric]:
    counts = {name: retriever.filter_cache() for name, _, retriever in _caching(served)}
    return _cache_families("genret_filter_cache", "filters kept of an index", "index", counts)


def _grammar_caches(served: list[ServedIndex]) -> Iterable[Metric]:
    # Indexes of one model share its grammars.
    counts = {model: retriever.grammar_cache() for _, model, retriever in _caching(served)}
    return _cache_families("genret_grammar_cache", "grammars kept of a model", "model", counts)


def _caching(served: list[ServedIndex]) -> Iterator[tuple[str, str, CachingRetriever]]:
    """Yield name, model and retriever of every index whose retriever tells of its caches."""
    for index in served:
        if isinstance(index.retriever, CachingRetriever):
            yield index.description.name, index.description.model, index.retriever


def _cache_families(name: str, what: str, label: str, counts: dict[str, CacheCounts]) -> Iterable[Metric]:
    hits = CounterMetricFamily(f"{name}_hits", f"Requests answered by the {what}.", labels=[label])
    misses = CounterMetricFamily(f"{name}_misses", f"Requests not answered by the {what}.", labels=[label])
    evictions = CounterMetricFamily(f"{name}_evictions", f"Given up of the {what}.", labels=[label])
    held = GaugeMetricFamily(f"{name}_held_bytes", f"Memory of the {what}, bytes.", labels=[label])
    for key, count in counts.items():
        hits.add_metric([key], count.hits)
        misses.add_metric([key], count.misses)
        evictions.add_metric([key], count.evictions)
        held.add_metric([key], count.held_bytes)
    return hits, misses, evictions, held
