"""Defines the server's metrics, in one registry, and serves them with liveness and readiness.

Events are counted as they happen; state (queues, indexes, caches, readiness) is read at every scrape. The
monitoring port has /metrics, /livez and /readyz, needs no token and shows no secrets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial

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
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from genret.decoding.bounded_cache import CacheCounts
from genret.service.client.reply import IndexInfo
from genret.service.serving.batching import DeviceQueue, DeviceQueues
from genret.service.serving.readiness import Readiness, State
from genret.service.serving.schema_compiler import SchemaCompiler
from genret.service.serving.served import REJECTIONS, STAGES, IndexTable

_DIGITS = 6


def geometric(first: float, factor: float, count: int) -> tuple[float, ...]:
    """Return `count` upper bounds, each `factor` times the one before."""
    # Rounded, so that the text shows 0.0032 and not 0.0032000000000000006.
    return tuple(float(f"{first * factor**i:.{_DIGITS}g}") for i in range(count))


UNKNOWN_METHOD = "unknown"
RELOAD_OUTCOMES = ("reloaded", "unchanged", "failed")

# From 100 us to more than the longest time of a call.
_SECONDS = geometric(1e-4, 2.0, 22)
_TOKENS = geometric(16, 2.0, 16)
_REQUESTS = geometric(1, 2.0, 11)
_BYTES = geometric(2**16, 4.0, 11)


class _Registry:
    """A registry of metrics. No client can make a new series of a label."""

    def __init__(self) -> None:
        # Only the process has this switch. A `_created` series beside every counter and histogram repeats
        # process_start_time_seconds, and adds a third to every scrape.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)

    def render(self) -> tuple[bytes, str]:
        """Return the Prometheus text format and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="genret", registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace="genret", buckets=buckets, registry=self.registry)


class CallMetrics(_Registry):
    """Counters of calls, kept where clients are."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = self._counter(
            "requests", "Calls that ended, by the gRPC status they ended with.", "method", "code"
        )
        self.request_seconds = self._histogram(
            "request_seconds", "Time from a call's arrival to its end, seconds.", _SECONDS, "method"
        )
        in_flight = "Calls that have not ended."
        self.in_flight = Gauge("genret_requests_in_flight", in_flight, ["method"], registry=self.registry)
        restarts = "Times the engine's process ended and another one had to be started."
        self.engine_restarts = self._counter("engine_restarts", restarts)

    def expect_calls(self, methods: Iterable[str]) -> None:
        """Begin counts that alerts watch with 0, by the names of methods.

        Prometheus computes an increase from the value before: a series that begins with its first event does
        not increase by it.
        """
        for method in methods:
            self.requests.labels(method, "OK")
            self.requests.labels(method, "INTERNAL")


class EngineMetrics(_Registry):
    """Counters of queues, batches and indexes, kept where the models are."""

    def __init__(self) -> None:
        super().__init__()
        GCCollector(registry=self.registry)
        self.results = self._counter(
            "results",
            "Answers given, by the way they were decoded and whether they hold anything.",
            "method",
            "finish_reason",
        )
        self.reloads = self._counter(
            "reloads", "Attempts to replace an index by its newest version.", "index", "outcome"
        )
        self.rejected = self._counter("rejected", "Requests refused for lack of room.", "reason")
        self.cancelled = self._counter(
            "cancelled", "Requests whose client went away, by where they were then.", "stage"
        )
        self.deadline_exceeded = self._counter(
            "deadline_exceeded",
            "Requests whose deadline passed or could not be met, by where they were then.",
            "stage",
        )
        self.queue_wait_seconds = self._histogram(
            "queue_wait_seconds", "Time a request waited for its batch, seconds.", _SECONDS
        )
        self.batch_size = self._histogram("batch_size", "Requests in a batch.", _REQUESTS)
        self.batch_tokens = self._histogram(
            "batch_tokens", "Work of a batch as estimated before it ran, tokens.", _TOKENS
        )
        self.batch_seconds = self._histogram(
            "batch_seconds", "Time a device was at a batch, seconds.", _SECONDS, "device"
        )
        self.prefill_seconds = self._histogram(
            "prefill_seconds", "Time an answer's prompts were computed, seconds.", _SECONDS
        )
        self.decode_seconds = self._histogram(
            "decode_seconds", "Time an answer was decoded behind its prompt, seconds.", _SECONDS
        )
        self.shortlist_seconds = self._histogram(
            "shortlist_seconds", "Time the vectors were asked for an answer, seconds.", _SECONDS
        )
        self.score_seconds = self._histogram(
            "score_seconds", "Time the titles of an answer were scored, seconds.", _SECONDS
        )
        self.scored_titles = self._counter(
            "scored_titles", "Titles scored that shortlists or clients proposed."
        )
        self.decode_steps = self._counter("decode_steps", "Decode steps, those of each answer added up.")
        self.model_tokens = self._counter("model_tokens", "Tokens computed behind prompts.")
        self.kv_peak_bytes = self._histogram(
            "kv_peak_bytes", "Most key/value memory a batch held at any time, bytes.", _BYTES
        )

    def expect_work(self, indexes: Iterable[str]) -> None:
        """Begin counts that alerts watch with 0, by the names of indexes; see `CallMetrics.expect_calls`."""
        for reason in REJECTIONS:
            self.rejected.labels(reason)
        for stage in STAGES:
            self.deadline_exceeded.labels(stage)
            if stage != "arrival":
                self.cancelled.labels(stage)
        for index in indexes:
            for outcome in RELOAD_OUTCOMES:
                self.reloads.labels(index, outcome)

    def count_reload(self, index: str, outcome: str) -> None:
        """Count the end of a reload; `outcome` is one of RELOAD_OUTCOMES."""
        self.reloads.labels(index, outcome).inc()


class Metrics(CallMetrics, EngineMetrics):
    """All counters of a server in one process."""


class ServerState(Collector):
    """Reads at every scrape whether a server is ready, and what this process and `others` take."""

    def __init__(
        self, version: str, readiness: Readiness, others: Callable[[], Iterable[int]] = lambda: ()
    ) -> None:
        self._version = version
        self._readiness = readiness
        self._others = others

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield InfoMetricFamily("genret_build", "The running software.", {"version": self._version})
        ready = GaugeMetricFamily("genret_ready", "1 while requests are taken, 0 while warming or draining.")
        ready.add_metric([], float(self._readiness.state is State.READY))
        yield ready
        yield from _processes(["self", *self._others()])


def _processes(pids: Sequence[int | str]) -> Iterator[Metric]:
    """Yield the usual metrics of a process, added up for several; limit and start are those of the first."""
    found: dict[str, Metric] = {}
    for pid in pids:
        for family in ProcessCollector(pid=partial(str, pid), registry=None).collect():
            known = found.setdefault(family.name, family)
            if known is not family and family.name not in _OF_ONE_PROCESS:
                (one,), (more,) = known.samples, family.samples
                known.samples = [one._replace(value=one.value + more.value)]
    yield from found.values()


_OF_ONE_PROCESS = ("process_max_fds", "process_start_time_seconds")


_OF_DEVICES: dict[str, tuple[str, Callable[[DeviceQueue], int]]] = {
    "genret_queue_depth": ("Requests that wait for a batch.", lambda lane: lane.num_waiting),
    "genret_clients": ("Clients with requests that wait or run.", lambda lane: lane.admission.num_clients),
    "genret_queue_tokens": (
        "Work accepted and not finished, running batches included, tokens.",
        lambda lane: lane.admission.num_tokens,
    ),
}


class EngineState(Collector):
    """Reads queues, indexes and caches at every scrape, which must be on their event loop."""

    def __init__(self, lanes: DeviceQueues, indexes: IndexTable, compiler: SchemaCompiler) -> None:
        self._compiler = compiler
        self._lanes = lanes
        self._indexes = indexes

    def collect(self) -> Iterator[Metric]:
        """Yield every family, even without samples."""
        lanes = self._lanes.all()
        for name, (text, read) in _OF_DEVICES.items():
            yield _gauge(name, text, "device", [(lane.device, read(lane)) for lane in lanes])
        compiler = self._compiler
        yield _gauge(
            "genret_schemas",
            "New schemas that wait to be compiled, or are being compiled.",
            "stage",
            [("queue", compiler.num_waiting), ("running", compiler.num_running)],
        )
        yield _gauge(
            "genret_schema_compilations",
            "New schemas by their end: compiled or found wrong, refused for lack of room, given up.",
            "outcome",
            [
                ("compiled", compiler.num_compiled),
                ("refused", compiler.num_refused),
                ("abandoned", compiler.num_abandoned),
            ],
            CounterMetricFamily,
        )
        served = [self._indexes.resolve(index.name) for index in self._indexes.describe()]
        yield from _indexes([one.description for one in served])
        filters = {one.description.name: one.retriever.filter_cache() for one in served}
        yield from _cache("genret_filter_cache", "filters kept of an index", "index", filters)
        # Indexes of one model share its grammars.
        grammars = {one.description.model: one.retriever.grammar_cache() for one in served}
        yield from _cache("genret_grammar_cache", "grammars kept of a model", "model", grammars)


def _gauge(
    name: str,
    text: str,
    label: str,
    values: Iterable[tuple[str, float]],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    family = kind(name, text, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family


def _indexes(served: list[IndexInfo]) -> Iterator[Metric]:
    labels = ["name", "version", "digest", "model", "device"]
    info = InfoMetricFamily("genret_index", "The index versions that are served.", labels=labels)
    for d in served:
        info.add_metric([d.name, d.version, d.digest, d.model, d.device], {})
    yield info
    rows = [(d.name, d.num_rows) for d in served]
    yield _gauge("genret_index_rows", "Titles of an index, as it stores them.", "name", rows)
    entities = [(d.name, d.num_entities) for d in served]
    yield _gauge("genret_index_entities", "Entities of an index.", "name", entities)
    text = "When the served version of an index was opened, seconds since 1970."
    loaded = [(d.name, d.loaded_at or 0.0) for d in served]
    yield _gauge("genret_index_loaded_timestamp_seconds", text, "name", loaded)


def _cache(name: str, what: str, label: str, counts: dict[str, CacheCounts]) -> Iterator[Metric]:
    for event, text in _CACHE_EVENTS.items():
        values = [(key, getattr(count, event)) for key, count in counts.items()]
        yield _gauge(f"{name}_{event}", f"{text} the {what}.", label, values, CounterMetricFamily)
    held = [(key, count.num_bytes) for key, count in counts.items()]
    yield _gauge(f"{name}_held_bytes", f"Memory of the {what}, bytes.", label, held)


_CACHE_EVENTS = {
    "hits": "Requests answered by",
    "misses": "Requests not answered by",
    "evictions": "Given up of",
}
_RETRY_AFTER_S = "1"
_FRESH = {"cache-control": "no-store"}


def monitoring_app(
    metrics: CallMetrics, readiness: Readiness, others: Callable[[], Awaitable[bytes]]
) -> Starlette:
    """Return the monitoring application; `others` gives the metrics of other processes.

    Its handlers run on the event loop that serves requests: /livez shows that it turns, and state is
    consistent while it is read.
    """

    async def show_metrics(request: Request) -> Response:
        text, content_type = metrics.render()
        return Response(text + await others(), headers={"content-type": content_type, **_FRESH})

    async def say_alive(request: Request) -> Response:
        return PlainTextResponse("the event loop turns\n", headers=_FRESH)

    async def say_ready(request: Request) -> Response:
        text = f"{readiness.state.value}\n"
        if readiness.state is State.READY:
            return PlainTextResponse(text, headers=_FRESH)
        return PlainTextResponse(text, 503, {"retry-after": _RETRY_AFTER_S, **_FRESH})

    app = Starlette(
        routes=[
            Route("/metrics", show_metrics, methods=["GET"]),
            Route("/livez", say_alive, methods=["GET"]),
            Route("/readyz", say_ready, methods=["GET"]),
        ]
    )
    app.router.redirect_slashes = False  # a redirect would go wherever the Host header says
    return app
