"""Answers for the explorer page that a test knows every figure of, and a server that gives them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.applications import Starlette

from genret.retrieval.errors import InputError
from genret.service.call import Call
from genret.service.configuration.server_config import TlsConfig
from genret.service.errors import OverloadedError
from genret.service.gateway.http_app import make_app
from genret.service.gateway.http_server import HttpServer
from genret.service.methods import Method
from genret.service.observability.metrics import CallMetrics
from genret.service.observability.observations import CallObserver
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.security.authority import Authority
from genret.service.serving.readiness import Readiness
from genret.service.serving.request_bytes import RequestBytes
from tests.service.asynchronous import in_a_thread
from tests.service.running_server import make_config

ANYBODY = Authority(None)
ATTACK = '<img src=x onerror="window.attacked=true">'
_INDEX = pb.IndexRef(name="plays", version="20260101", digest="sha256:abc")
_TIMINGS = pb.Timings(queue_ms=0.5, prefill_ms=4, decode_ms=12.5, total_ms=18)
E, P, F = (pb.EXPLANATION_STATE_EXPANDED, pb.EXPLANATION_STATE_PRUNED, pb.EXPLANATION_STATE_FINISHED)


def _node(
    parent: int | None, depth: int, text: str, probability: float, state: int, valid: float | None = None
) -> pb.ExplanationNode:
    logprob, count = math.log(probability), None if valid is None else 3
    place = {"parent": parent, "depth": depth, "token_id": depth * 10, "text": text, "state": state}
    total = logprob * max(depth, 1)
    return pb.ExplanationNode(
        logprob=logprob, total_logprob=total, valid_mass=valid, num_valid=count, **place
    )


def _nodes() -> list[pb.ExplanationNode]:
    """Hamlet and the attack are titles; "Mac" was walked in vain, "Oth" and "Ju" were left."""
    nodes = [
        _node(None, 0, "", 1, E, 0.9),
        _node(0, 1, "Ham", 0.5, E, 0.75),
        _node(0, 1, "Oth", 0.1, P),
        _node(0, 1, "Ju", 0.05, P),
        _node(0, 1, ATTACK, 0.25, E, 0.5),
        _node(1, 2, "let", 0.75, E, 1),
        _node(5, 3, "</s>", 1, F),
        _node(4, 2, "</s>", 0.5, F),
        _node(0, 1, "Mac", 0.05, E, 0.01),
        _node(8, 2, "beth", 0.01, P),
    ]
    nodes[6].candidate_rank, nodes[7].candidate_rank = 1, 2
    return nodes


def _candidate(rank: int, title: str, entity_id: str, logprob: float) -> pb.Candidate:
    kind = pb.MetadataValue(string_value=f"<b>{title}</b>")
    year = pb.MetadataValue(int_value=2**60 + 1)
    metadata = {"kind": kind, "year": year, "none": pb.MetadataValue()}
    names = {"title": title, "entity_id": entity_id, "surface": title if rank == 1 else "another name"}
    return pb.Candidate(rank=rank, logprob=logprob, score=logprob, metadata=metadata, **names)


def beam_answer() -> pb.RetrieveResponse:
    return pb.RetrieveResponse(
        candidates=[
            _candidate(1, "Hamlet", "Q1", math.log(0.375)),
            _candidate(2, ATTACK, "Q<2>", math.log(0.125)),
        ],
        finish_reason=pb.FINISH_REASON_OK,
        method=pb.RETRIEVAL_METHOD_BEAM,
        certified=True,
        num_steps=3,
        num_nodes=6,
        timings=_TIMINGS,
        index=_INDEX,
        kv_usage=pb.KvUsage(peak_bytes=2048, per_branch_bytes=8192, saved_bytes=6144),
        explanation=pb.Explanation(nodes=_nodes()),
    )


def disc_answer(request: pb.RetrieveRequest) -> pb.RetrieveResponse:
    answer = beam_answer()
    answer.method = pb.RETRIEVAL_METHOD_DISC
    answer.ClearField("certified")
    answer.mass, answer.mass_stderr = 0.5, 0.05
    answer.mass_lower_bound, answer.mass_upper_bound = 0.25, 0.75
    answer.seed = request.seed if request.HasField("seed") else 7
    answer.num_draws, answer.num_accepted = 4, 1
    answer.candidates[0].probability, answer.candidates[1].probability = 0.5, 0.5
    names = ("sample", "draw", "node", "valid_mass", "acceptance_probability", "accepted", "chosen")
    for drawn in (
        (0, 0, 7, 0.45, 0.45, False, False),
        (0, 1, 6, 0.675, 0.675, True, True),
        (1, 0, 7, 0.45, 0.45, False, False),
        (1, 1, 7, 0.45, 0.0, False, True),
    ):
        answer.explanation.draws.add(**dict(zip(names, drawn, strict=True)))
    return answer


def scored_answer(request: pb.RetrieveRequest) -> pb.RetrieveResponse:
    """With auto Hamlet was written and the other one is of the shortlist alone; with shortlist both are."""
    answer = beam_answer()
    answer.method = request.method
    answer.certified = False
    answer.mass_lower_bound = 0.625
    answer.num_scored, answer.shortlist_size = 120, 100
    answer.timings.shortlist_ms, answer.timings.score_ms = 2.5, 6.5
    if request.query == "ranked":
        return _ranked(answer)
    shares = (0.2, 0.6) if request.query == "reordered" else (0.6, 0.2)
    for candidate, share, similarity in zip(answer.candidates, shares, (0.5, 0.875), strict=True):
        candidate.probability, candidate.similarity = share, similarity
        candidate.score = candidate.logprob + 2 * similarity
    if request.method == pb.RETRIEVAL_METHOD_SHORTLIST:
        answer.ClearField("explanation")
        answer.ClearField("certified")
    else:
        answer.explanation.nodes[7].ClearField("candidate_rank")
    return answer


def _ranked(answer: pb.RetrieveResponse) -> pb.RetrieveResponse:
    """By the ranking, without the index's vectors."""
    answer.ClearField("certified")
    answer.nothing_fits = 0.125
    answer.missing_evidence.append("vectors")
    of_both = (0.75, {"names": 6.5, "model": -1.25, "queries": 2}), (0.0625, {"texts": 0.5})
    for candidate, (share, shares) in zip(answer.candidates, of_both, strict=True):
        candidate.probability, candidate.score = share, sum(shares.values())
        candidate.shares.update(shares)
    return answer


def large_answer() -> pb.RetrieveResponse:
    """As many places and draws as an answer may hold: 128 ways of 32 tokens, a title at the end of each."""
    answer = disc_answer(pb.RetrieveRequest())
    nodes = [_node(None, 0, "", 1, E, 0.9)]
    for way in range(127):
        for depth in range(1, 33):
            state = F if depth == 32 else E
            parent = 0 if depth == 1 else len(nodes) - 1
            nodes.append(_node(parent, depth, f" w{way}", 0.9, state, None if state is F else 0.5))
    draws = [
        pb.ExplanationDraw(sample=i // 16, draw=i % 16, node=32 * (i % 127 + 1), chosen=i % 16 == 0)
        for i in range(4096)
    ]
    answer.explanation.CopyFrom(pb.Explanation(nodes=nodes, draws=draws, truncated=True))
    return answer


def empty_answer(abstained: bool) -> pb.RetrieveResponse:
    return pb.RetrieveResponse(
        finish_reason=pb.FINISH_REASON_NO_MATCH,
        method=pb.RETRIEVAL_METHOD_DISC if abstained else pb.RETRIEVAL_METHOD_BEAM,
        abstained=abstained,
        timings=_TIMINGS,
        index=_INDEX,
    )


class CannedRetrieval:
    """Answers by what the query says; `requests` are the messages that came."""

    def __init__(self) -> None:
        self.requests: list[pb.RetrieveRequest | pb.AnswerRequest] = []
        self.cancelled = threading.Event()
        self.request_bytes = RequestBytes(max_client_bytes=2**26, max_bytes=2**27)

    async def call(self, method: Method, request: Any, call: Call) -> Any:
        """Run a method of the table of the API, as `Methods.call` does."""
        ways = {"Retrieve": self.retrieve, "Answer": self.answer, "ListIndexes": self.list_indexes}
        ways["Complete"] = self.complete
        return await ways[method.name](request, call)

    async def complete(self, request: pb.CompleteRequest, call: Call) -> pb.CompleteResponse:
        """Complete what begins with "ham" with Hamlet, and with an alias that would be markup."""
        if not request.prefix.lower().startswith("ham"):
            return pb.CompleteResponse(index=_INDEX)
        spans = [pb.MatchedSpan(begin=0, end=len(request.prefix))]
        other = pb.Completion(entity_id="2", title="Hamlet, a film", form=f"ham{ATTACK}", spans=spans)
        play = pb.Completion(entity_id="1", title="Hamlet", form="Hamlet", spans=spans)
        return pb.CompleteResponse(completions=[play, other], index=_INDEX)

    async def retrieve(self, request: pb.RetrieveRequest, call: Call) -> pb.RetrieveResponse:
        self.requests.append(request)
        if not request.query:
            raise InputError("query", "must not be blank")
        if request.filter.startswith("kid"):
            raise InputError("filter", "no column 'kid' <i>here</i>")
        match request.query:
            case "nothing":
                return empty_answer(abstained=False)
            case "unsure":
                return empty_answer(abstained=True)
            case "large":
                return large_answer()
            case "overload":
                raise OverloadedError("QUEUE_FULL", "the queue is full", retry_after_s=1.5)
            case "slow":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
        if request.method == pb.RETRIEVAL_METHOD_DISC:
            return disc_answer(request)
        if request.query == "compared" and request.method == pb.RETRIEVAL_METHOD_SHORTLIST:
            raise InputError("method", "shortlist needs evidence, which this index has not")
        if request.query in ("scored", "ranked", "reordered"):
            return scored_answer(request)
        return beam_answer()

    async def answer(self, request: pb.AnswerRequest, call: Call) -> pb.AnswerResponse:
        self.requests.append(request)
        if "{" not in request.schema_json:
            raise InputError("schema_json", "no JSON: line 1 column 1")
        year = pb.MetadataValue(int_value=1603)
        entities = [pb.Entity(entity_id="Q1", title="Hamlet", metadata={"year": year})]
        title = {"pointer": "/title", "index": "titles", "title": "Hamlet", "shares": [1.0]}
        counts = {"num_tokens": 9, "num_forced": 4, "num_forwards": 5}
        return pb.AnswerResponse(
            json='{"title": "Hamlet", "n": 12345678901234567890.10, "s": "a,{b}", "e": []}',
            entities=[pb.AnswerEntity(entities=entities, **title)],
            logprob=-3.25,
            method=pb.ANSWER_METHOD_GREEDY,
            timings=_TIMINGS,
            index=_INDEX,
            **counts,
        )

    async def list_indexes(
        self, request: index_pb.ListIndexesRequest, call: Call
    ) -> index_pb.ListIndexesResponse:
        """Two indexes, the first with columns."""
        columns = [index_pb.Column(name="kind", type="string"), index_pb.Column(name="my year", type="int")]
        vectors = index_pb.Evidence(kind="vectors", count=20, problem="the encoder cannot be loaded")
        figures = {"num_rows": 30, "num_entities": 20, "model": "tiny", "device": "cpu"}
        plays = index_pb.Index(name="plays", version="20260101", is_default=True, columns=columns, **figures)
        plays.evidence.extend([index_pb.Evidence(kind="names", count=30), vectors])
        plays.ranking.fitted = True
        return index_pb.ListIndexesResponse(indexes=[plays, index_pb.Index(name="other")])


@contextlib.asynccontextmanager
async def _canned(retrieval: CannedRetrieval, authority: Authority) -> AsyncIterator[str]:
    config = make_config("plays")
    observer, readiness = CallObserver(CallMetrics(), config.log), Readiness(())
    app = make_app(retrieval, readiness, authority, observer, config, Starlette())  # type: ignore[arg-type]
    server = HttpServer(app, "127.0.0.1", 0, TlsConfig())
    await server.start()
    yield server.address
    await server.stop(0)


@contextlib.contextmanager
def canned_server(retrieval: CannedRetrieval, authority: Authority = ANYBODY) -> Iterator[str]:
    """The gateway over canned answers, on another thread; gives its URL."""
    with in_a_thread(_canned(retrieval, authority)) as (address, _):
        yield f"http://{address}/"
