"""Text in, entities out: random checkpoints against plain forwards; faults stay with their request."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genret import Mention, RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError
from genret.retrieval.errors import IndexDirectoryError, InputError, ModelError
from genret.retrieval.index.reader import Index
from tests.checkpoints import CATALOGUE, make_checkpoint, make_index, plain_logprob, plain_model
from tests.entity_oracle import EntityOracle
from tests.fakes import SelfCancelling, TableModel
from tests.table_retrievers import (
    CONFIG,
    METHODS,
    POISON,
    TOKENIZER,
    CountingModel,
    answers,
    assert_alike,
    poisoned,
    without_costs,
)

ARCHITECTURES = ("llama", "bart")
QUERIES = ["who wrote hamlet", "a river", "Denmark's prince </s> <title>", "Quecksilber ü"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def retriever(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    index = make_index(tmp_path_factory.mktemp("index"), checkpoint)
    with Retriever.open(index, checkpoint, device="cpu") as opened:
        yield opened


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Any:
    return plain_model(checkpoint)


def enumerate_entities(retriever: Retriever, plain: Any, query: str) -> EntityOracle:
    """log P_L of every row, each by one forward pass of its own."""
    index = retriever.index
    prompt = retriever.config.prompt(None).encode(retriever.tokenizer, query)
    rows = {rank: plain_logprob(plain, prompt, index.row_token_ids(rank)) for rank in range(index.num_rows)}
    return EntityOracle(index, rows)


def assert_are_all(result: RetrievalResult, oracle: EntityOracle) -> None:
    """Every entity with its probability, under its best form; the best first."""
    numbers = oracle.numbers(result.candidates)
    assert sorted(numbers) == oracle.entities == list(range(12))
    for number, candidate in zip(numbers, result.candidates, strict=True):
        assert candidate.logprob == pytest.approx(oracle.logprob(number), abs=1e-4)
        values = oracle.forms(number)
        mine = {oracle.index.surface(rank, number): value for rank, value in values.items()}
        assert mine[candidate.surface] == pytest.approx(max(mine.values()), abs=1e-4)
        entity = oracle.index.entity(number)
        assert (candidate.title, candidate.metadata) == (entity.title, entity.metadata)
    scores = [c.score for c in result.candidates]
    assert scores == [c.logprob for c in result.candidates] == sorted(scores, reverse=True)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("options", [{"method": "auto", "vector_weight": 0.0}, {"method": "shortlist"}])
def test_a_small_catalogue_is_scored_as_a_whole(
    retriever: Retriever, plain: Any, query: str, options: dict[str, Any]
) -> None:
    (result,) = retriever.retrieve(query, k=12, **options)
    oracle = enumerate_entities(retriever, plain, query)
    assert (result.method, result.certified) == (options["method"], True)
    assert_are_all(result, oracle)
    mass = oracle.mass()
    assert result.mass_lower == pytest.approx(mass, rel=1e-3)
    for candidate in result.candidates:
        assert candidate.probability == pytest.approx(math.exp(candidate.logprob) / mass, rel=1e-3)
    (ranked,) = retriever.retrieve(query, k=12)  # by the ranking: the same entities in another order
    assert (ranked.method, ranked.certified, ranked.mass_lower) == ("auto", None, result.mass_lower)
    logprobs = {c.entity_id: c.logprob for c in ranked.candidates}
    assert logprobs == {c.entity_id: pytest.approx(c.logprob, abs=1e-5) for c in result.candidates}


def test_many_queries_are_answered_as_each_alone_whatever_the_batch_size(retriever: Retriever) -> None:
    assert retriever.retrieve([]) == []
    queries = ["x" * n for n in (40, 1, 25, 3, 30, 2, 9)]
    options: dict[str, Any] = {"k": 2, "method": "disc", "seed": 9}
    alone = [retriever.retrieve(query, **options)[0] for query in queries]
    for batch_size in (1, 3, 7):
        together = retriever.retrieve((q for q in queries), batch_size=batch_size, **options)  # type: ignore[arg-type]
        assert [result.query for result in together] == queries
        for one, other in zip(alone, together, strict=True):
            assert_alike(one, other)


def test_a_chosen_seed_is_reported_and_reproduces_and_beams_have_none(retriever: Retriever) -> None:
    disc, second = retriever.retrieve(["x", "x"], k=2, method="disc", num_samples=64)
    assert disc.seed != second.seed
    assert 0 <= disc.seed < 2**53  # exact in every JSON reader
    assert_alike(disc, retriever.retrieve("x", k=2, method="disc", num_samples=64, seed=disc.seed)[0])
    (beam,) = retriever.retrieve("x", k=2, method="beam")
    assert (beam.seed, beam.mass, beam.num_draws, beam.num_accepted) == (None, None, 0, 0)
    assert beam.certified in (True, False)
    assert disc.certified is None
    assert disc.num_draws >= 64
    for result in (beam, disc):
        assert result.num_steps > 0
        assert 0 < result.timings.decode_ms < result.timings.total_ms
        assert result.timings.total_ms == pytest.approx(result.timings.prefill_ms + result.timings.decode_ms)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": ""}, "query: must not be empty"),
        ({"queries": ["a", "  "]}, r"queries\[1\]: must not be empty"),
        ({"queries": ["a", 3]}, r"queries\[1\]: must be a str, got int"),
        ({"queries": None}, "queries: must be a str or a list of them, got NoneType"),
        ({"queries": {"query": "a"}}, "queries: must be a str or a list of them, got dict"),
        ({"queries": "a", "batch_size": 0}, "batch_size: must be an integer of at least 1, got 0"),
        (
            {"queries": "a", "prompt": "absent"},
            r"prompt: unknown template 'absent'; "
            r"known: \['annotate', 'few-shot', 'few-shot-mention', 'json', 'json-brief', 'mention', "
            r"'plain'\]",
        ),
    ],
)
def test_wrong_arguments(retriever: Retriever, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        retriever.retrieve(**arguments)


def test_longest_query_that_fits_is_answered_and_a_longer_one_names_both_numbers(
    retriever: Retriever, plain: Any
) -> None:
    longest = 128 if retriever.model.is_encoder_decoder else 128 - retriever.trie.max_depth
    query = "$" * (longest - 2)  # between the two special tokens of the template
    request = RetrieveRequest(query, k=12, method="beam", beam_size=100)
    assert retriever.prompt_tokens(request) == longest
    (result,) = answers(retriever, request)
    assert result.certified
    assert_are_all(result, enumerate_entities(retriever, plain, query))
    message = (
        f"too long: the prompt has {longest + 1} tokens (2 are the template's), "
        f"the model takes at most {longest}"
    )
    for asked, place in ((query + "$", "query"), (["fine", query + "$"], "queries[1]")):
        with pytest.raises(InputError) as error:
            retriever.retrieve(asked)
        assert str(error.value) == f"{place}: {message}"
    wrong = RetrieveRequest(query + "$"), RetrieveRequest("x", prompt="absent")
    replies = retriever.retrieve_batch([wrong[0], request, wrong[1]])
    assert [getattr(reply, "field", None) for reply in replies] == ["query", None, "prompt"]
    assert_alike(replies[1], result)
    assert retriever.retrieve_batch([]) == []


def test_link_uses_the_mention_template(retriever: Retriever) -> None:
    mention = Mention("Amazon", left="rain over the ", right=" basin")
    linked = retriever.link([mention, Mention("Nile")], k=2)
    assert [r.query for r in linked] == ["rain over the [Amazon] basin", "[Nile]"]
    query = "rain over the [Amazon] basin"
    assert_alike(linked[0], retriever.retrieve(query, k=2, prompt="mention", shortlist_query="Amazon")[0])
    assert_alike(linked[0], retriever.link(mention, k=2)[0])
    assert all(len(r.candidates) == 2 for r in linked)


@pytest.mark.parametrize(
    ("mentions", "message"),
    [
        ([Mention("a"), Mention(" ")], r"mentions\[1\]: must not be empty"),
        (Mention(""), "mention: must not be empty"),
        (["Amazon"], r"mentions\[0\]: must be a Mention, got str"),
        ("Amazon", "mentions: must be a Mention or a list of them, got str"),
        ([Mention("a" * 300)], r"mentions\[0\]: too long: the prompt has \d+ tokens"),
    ],
)
def test_wrong_mentions(retriever: Retriever, mentions: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        retriever.link(mentions)


def test_a_retriever_says_what_it_holds_and_when_it_is_closed(checkpoint: Path, tmp_path: Path) -> None:
    retriever = Retriever.open(make_index(tmp_path, checkpoint), checkpoint)
    text = repr(retriever)
    assert all(part in text for part in ("12 entities, 21 rows", str(checkpoint), "model on cpu"))
    retriever.close()
    retriever.close()
    with pytest.raises(IndexDirectoryError, match="this index was closed"):
        retriever.retrieve("x")


SOUND = TableModel.random(TOKENIZER.vocab_size, seed=2)


@pytest.fixture(scope="module")
def index(table_index: Path) -> Iterator[Index]:
    with Index.open(table_index) as opened:
        yield opened


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("depth", [0, 1])
def test_broken_logits_of_one_query_leave_the_others_alone(
    index: Index, method: str, value: float, depth: int
) -> None:
    retriever = Retriever(index, poisoned(SOUND, value, depth), TOKENIZER, CONFIG)
    texts = ["one", f"two {POISON}", "three", POISON, "five"]
    requests = [RetrieveRequest(text, k=4, method=method, seed=3) for text in texts]
    replies = retriever.retrieve_batch(requests)
    for request, reply in zip(requests, replies, strict=True):
        if POISON in request.query:
            assert isinstance(reply, ModelError)
            assert "NaN or infinite logits" in str(reply)
        else:
            (alone,) = answers(retriever, request)
            assert without_costs(reply).candidates == alone.candidates != ()
    with pytest.raises(ModelError, match=r"^queries\[1\]: the model returned NaN or infinite logits"):
        retriever.retrieve(texts[:3], method=method)


@pytest.mark.parametrize("method", METHODS)
def test_cancelled_requests_leave_the_batch(index: Index, method: str) -> None:
    retriever = Retriever(index, SOUND, TOKENIZER, CONFIG)
    requests = [RetrieveRequest(f"query {n}", k=3, method=method, seed=n) for n in range(4)]
    cancelled, late = CancelToken(), CancelToken(deadline=time.monotonic() - 1.0)
    cancelled.cancel()
    replies = retriever.retrieve_batch(requests, [None, cancelled, late, CancelToken()])
    assert type(replies[1]) is DecodingCancelledError
    assert type(replies[2]) is DeadlineExceededError
    for n in (0, 3):
        (alone,) = answers(retriever, requests[n])
        assert without_costs(replies[n]).candidates == alone.candidates
    token = SelfCancelling(2)  # polled at every step
    (reply,) = retriever.retrieve_batch(requests[:1], [token])
    assert isinstance(reply, DecodingCancelledError)
    assert token.polls == 3


def test_requests_too_wide_for_one_forward_are_split(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CountingModel(SOUND)
    monkeypatch.setattr("genret.retrieval.methods.batches._MAX_LOGITS_BYTES", 3 * 16 * model.vocab_size * 4)
    requests = [RetrieveRequest(f"q{n}", k=10, method="beam") for n in range(8)]
    results = answers(Retriever(index, model, TOKENIZER, CONFIG), *requests)
    assert model.prompts == [3, 3, 2]
    assert [result.query for result in results] == [f"q{n}" for n in range(8)]


def test_requests_of_one_method_share_their_forwards(index: Index) -> None:
    model = CountingModel(SOUND)
    retriever = Retriever(index, model, TOKENIZER, CONFIG)
    narrow = [RetrieveRequest(f"q{n}", k=5, method="beam") for n in range(30)]
    retriever.retrieve_batch([*narrow, RetrieveRequest("wide", k=300, method="beam")])
    assert model.prompts == [30, 1], "a wide request does not widen the others"
    model.sessions.clear()
    retriever.retrieve_batch(
        [RetrieveRequest(f"q{n}", k=3 + n, method="beam", beam_size=9 + n) for n in range(8)]
        + [RetrieveRequest(f"q{n}", k=3, method="disc", temperature=1.0 + n) for n in range(8)]
    )
    assert len(model.sessions) == 2
    assert sum(session.num_forwards for session in model.sessions) <= 3 * retriever.trie.max_depth


LONG_TITLE = "Krung Thep Maha Nakhon Amon Rattanakosin Mahinthara Ayutthaya Mahadilok Phop Noppharat"


@pytest.fixture(scope="module", params=["llama", "bart"])
def with_outlier(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Retriever]:
    """Room for 60 tokens, and one title that needs more."""
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("model"), request.param, max_positions=60)
    catalogue = f"{CATALOGUE}Q99\t{LONG_TITLE}\t\tcity\n"
    folder = make_index(tmp_path_factory.mktemp("index"), checkpoint, catalogue)
    with Retriever.open(folder, checkpoint) as retriever:
        assert retriever.trie.max_depth > 60
        yield retriever


@pytest.mark.parametrize("method", METHODS)
def test_one_monstrous_title_does_not_make_queries_too_long(with_outlier: Retriever, method: str) -> None:
    decoder_only = not with_outlier.model.is_encoder_decoder
    longest = 30 if decoder_only else 60
    for length in (1, longest - 2):
        beam_size = None if method == "disc" else 300
        own = {"auto": {"vector_weight": 0.0}, "disc": {"seed": 1}}.get(method, {})
        options: dict[str, Any] = {"method": method, "beam_size": beam_size, **own}
        (result,) = with_outlier.retrieve("$" * length, k=50, **options)
        ids = {c.entity_id for c in result.candidates}
        assert "Q99" not in ids
        if method != "disc":
            assert ids == {f"Q{n}" for n in range(1, 13)}
            assert result.certified is False  # the title that was given up is one of the fifty likeliest
    with pytest.raises(InputError, match=f"the prompt has {longest + 1} tokens .* at most {longest}$"):
        with_outlier.retrieve("$" * (longest - 1))


@pytest.mark.parametrize("method", ["auto", "beam"])
def test_titles_that_fit_are_scored_as_without_the_outlier(
    with_outlier: Retriever, tmp_path: Path, method: str
) -> None:
    checkpoint = Path(with_outlier.tokenizer.source)
    with Retriever.open(make_index(tmp_path, checkpoint), checkpoint) as without:
        (clean,) = without.retrieve("a river", k=12, method="beam", beam_size=300)
    own_order = {"vector_weight": 0.0} if method == "auto" else {}
    (result,) = with_outlier.retrieve("a river", k=12, method=method, beam_size=300, **own_order)
    assert [c.entity_id for c in result.candidates] == [c.entity_id for c in clean.candidates]
    assert [c.logprob for c in result.candidates] == pytest.approx(
        [c.logprob for c in clean.candidates], abs=1e-4
    )
