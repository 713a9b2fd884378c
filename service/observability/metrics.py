"""The server's metrics: one registry of its own, every family made in one place.

What happens is counted here as it happens; what exists anyway (queues, indexes, caches, readiness) is read
when metrics are scraped, see `service.observability.state`.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from service.observability.buckets import geometric
from service.serving.observer import REJECTIONS, STAGES

UNKNOWN_METHOD = "unknown"
RELOAD_OUTCOMES = ("reloaded", "unchanged", "failed")

# From 100 us, below which nothing is of interest to an operator, to more than the longest a call may take.
_SECONDS = geometric(1e-4, 2.0, 22)
_TOKENS = geometric(16, 2.0, 16)
_REQUESTS = geometric(1, 2.0, 11)
_BYTES = geometric(2**16, 4.0, 11)


class Metrics:
    """What a server counts. Label values are from bounded sets: no client can make a new series.

    Attributes:
        registry: Holds them, and the process's own (memory, file descriptors, garbage collection).
    """

    def __init__(self) -> None:
        # The library's only switch for them is one of the process: a `_created` series beside every counter
        # and histogram says what process_start_time_seconds says, and adds a third to every scrape.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._add_calls()
        self._add_queues()
        self._add_batches()
        self.reloads = self._counter(
            "genret_reloads", "Attempts to replace an index by its newest version.", "index", "outcome"
        )

    def _add_calls(self) -> None:
        self.requests = self._counter(
            "genret_requests", "Calls that ended, by the gRPC status they ended with.", "method", "code"
        )
        self.request_seconds = self._histogram(
            "genret_request_seconds", "Time from a call's arrival to its end, seconds.", _SECONDS, "method"
        )
        self.in_flight = Gauge(
            "genret_requests_in_flight", "Calls that have not ended.", ["method"], registry=self.registry
        )
        self.results = self._counter(
            "genret_results",
            "Answers given, by the way they were decoded and whether they hold anything.",
            "method",
            "finish_reason",
        )

    def _add_queues(self) -> None:
        self.rejected = self._counter("genret_rejected", "Requests refused for lack of room.", "reason")
        self.cancelled = self._counter(
            "genret_cancelled", "Requests whose client went away, by where they were then.", "stage"
        )
        self.deadline_exceeded = self._counter(
            "genret_deadline_exceeded",
            "Requests whose deadline passed or could not be met, by where they were then.",
            "stage",
        )
        self.queue_wait_seconds = self._histogram(
            "genret_queue_wait_seconds", "Time a request waited for its batch, seconds.", _SECONDS
        )

    def _add_batches(self) -> None:
        self.batch_size = self._histogram("genret_batch_size", "Requests in a batch.", _REQUESTS)
        self.batch_tokens = self._histogram(
            "genret_batch_tokens", "Work of a batch as estimated before it ran, tokens.", _TOKENS
        )
        self.batch_seconds = self._histogram(
            "genret_batch_seconds", "Time a device was at a batch, seconds.", _SECONDS, "device"
        )
        self.prefill_seconds = self._histogram(
            "genret_prefill_seconds", "Time an answer's prompts were computed, seconds.", _SECONDS
        )
        self.decode_seconds = self._histogram(
            "genret_decode_seconds", "Time an answer was decoded behind its prompt, seconds.", _SECONDS
        )
        self.shortlist_seconds = self._histogram(
            "genret_shortlist_seconds", "Time the vectors were asked for an answer, seconds.", _SECONDS
        )
        self.score_seconds = self._histogram(
            "genret_score_seconds", "Time the titles of an answer were scored, seconds.", _SECONDS
        )
        self.scored_titles = self._counter(
            "genret_scored_titles", "Titles scored that shortlists or clients proposed."
        )
        self.decode_steps = self._counter(
            "genret_decode_steps", "Decode steps, those of each answer added up."
        )
        self.model_tokens = self._counter("genret_model_tokens", "Tokens computed behind prompts.")
        self.kv_peak_bytes = self._histogram(
            "genret_kv_peak_bytes", "Most key/value memory a batch held at any time, bytes.", _BYTES
        )

    def expect(self, methods: Iterable[str], indexes: Iterable[str]) -> None:
        """Show the counts that alerts are about from the start, as 0.

        Prometheus sees an increase against what was there before: a count that begins with its first event
        does not increase by it.

        Args:
            methods: Names of the methods that are served.
            indexes: Names of the indexes that are served.
        """
        for reason in REJECTIONS:
            self.rejected.labels(reason)
        for stage in STAGES:
            self.deadline_exceeded.labels(stage)
            if stage != "arrival":
                self.cancelled.labels(stage)
        for method in methods:
            self.requests.labels(method, "OK")
            self.requests.labels(method, "INTERNAL")
        for index in indexes:
            for outcome in RELOAD_OUTCOMES:
                self.reloads.labels(index, outcome)

    def count_reload(self, index: str, outcome: str) -> None:
        """Count the end of a reload; `outcome` is one of RELOAD_OUTCOMES."""
        self.reloads.labels(index, outcome).inc()

    def watch(self, state: Collector) -> None:
        """Read what exists anyway at every scrape; see `service.observability.state.ServerState`."""
        self.registry.register(state)

    def render(self) -> tuple[bytes, str]:
        """Return the Prometheus text format and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)
