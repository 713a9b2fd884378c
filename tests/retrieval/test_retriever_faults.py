"""One request's trouble stays its own: broken logits, cancellation, deadlines, titles that do not fit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.cancellation import CancelToken
from decoding.errors import DeadlineExceededError, DecodingCancelledError
from decoding.language_model import PromptPrefix
from retrieval import RetrievalResult, Retriever, RetrieveRequest
from retrieval.errors import InputError, ModelError
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer
from tests.checkpoints import CATALOGUE, END, checkpoint_config, make_checkpoint, make_index, train_tokenizer
from tests.fakes import TableModel, TableSession

TOKENIZER = TextTokenizer(train_tokenizer(), END, "tiny")
CONFIG = checkpoint_config()
POISON = "#"  # a query that holds it breaks the model

Logits = Callable[[tuple[int, ...], tuple[int, ...]], Tensor]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = make_index(tmp_path_factory.mktemp("index"), TOKENIZER, rendering=CONFIG.rendering)
    with Index.open(folder) as opened:
        yield opened


def broken(value: float, depth: int) -> TableModel:
    """A random model that returns `value` for poisoned prompts once `depth` tokens are written."""
    (poison,) = TOKENIZER.encode_text(POISON)
    sound = TableModel.random(TOKENIZER.vocab_size, seed=1)

    def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
        logits = sound.logits(prompt, written)
        if poison in prompt and len(written) >= depth:
            return torch.full_like(logits, value)
        return logits

    return TableModel(TOKENIZER.vocab_size, function)


@pytest.mark.parametrize("method", ["auto", "beam", "disc", "shortlist"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("depth", [0, 1])
def test_broken_logits_of_one_query_leave_the_others_alone(
    index: Index, method: str, value: float, depth: int
) -> None:
    retriever = Retriever(index, broken(value, depth), TOKENIZER, CONFIG)
    texts = ["one", f"two {POISON}", "three", POISON, "five"]
    requests = [RetrieveRequest(text, k=4, method=method, seed=3) for text in texts]
    replies = retriever.retrieve_batch(requests)
    for request, reply in zip(requests, replies, strict=True):
        if POISON in request.query:
            assert isinstance(reply, ModelError)
            assert "NaN or infinite logits" in str(reply)
        else:
            assert isinstance(reply, RetrievalResult)
            (alone,) = retriever.retrieve_batch([request])
            assert isinstance(alone, RetrievalResult)
            assert alone.candidates == reply.candidates
            assert len(reply.candidates) > 0


def test_broken_logits_name_the_query(index: Index) -> None:
    retriever = Retriever(index, broken(math.nan, 0), TOKENIZER, CONFIG)
    with pytest.raises(ModelError, match=r"^queries\[1\]: the model returned NaN or infinite logits"):
        retriever.retrieve(["fine", POISON, "fine too"])


@pytest.mark.parametrize("method", ["auto", "beam", "disc", "shortlist"])
def test_cancelled_requests_leave_the_batch(index: Index, method: str) -> None:
    retriever = Retriever(index, TableModel.random(TOKENIZER.vocab_size, seed=2), TOKENIZER, CONFIG)
    requests = [RetrieveRequest(f"query {n}", k=3, method=method, seed=n) for n in range(4)]
    cancelled, late = CancelToken(), CancelToken(deadline=time.monotonic() - 1.0)
    cancelled.cancel()
    replies = retriever.retrieve_batch(requests, [None, cancelled, late, CancelToken()])
    assert type(replies[1]) is DecodingCancelledError
    assert type(replies[2]) is DeadlineExceededError
    for n in (0, 3):
        (alone,) = retriever.retrieve_batch([requests[n]])
        reply = replies[n]
        assert isinstance(alone, RetrievalResult)
        assert isinstance(reply, RetrievalResult)
        assert alone.candidates == reply.candidates


@pytest.mark.parametrize("method", ["auto", "beam", "disc", "shortlist"])
def test_cancellation_is_polled_at_every_step(index: Index, method: str) -> None:
    retriever = Retriever(index, TableModel.random(TOKENIZER.vocab_size, seed=2), TOKENIZER, CONFIG)
    polls = 0

    class AfterTwoSteps(CancelToken):
        def check(self) -> None:
            nonlocal polls
            polls += 1
            if polls > 2:
                self.cancel()
            super().check()

    (reply,) = retriever.retrieve_batch([RetrieveRequest("x", method=method)], [AfterTwoSteps()])
    assert isinstance(reply, DecodingCancelledError)
    assert polls == 3


def counting(index: Index, sessions: list[TableSession], prompts_of: list[int]) -> Retriever:
    class Counting(TableModel):
        def prefill(
            self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
        ) -> TableSession:
            sessions.append(super().prefill(prompts, prefix))
            prompts_of.append(len(prompts))
            return sessions[-1]

    sound = TableModel.random(TOKENIZER.vocab_size, seed=2)
    return Retriever(index, Counting(sound.vocab_size, sound.logits), TOKENIZER, CONFIG)


def test_a_wide_request_does_not_widen_the_others(index: Index) -> None:
    """A forward is as wide as its widest query: thirty narrow ones beside a wide one go without it."""
    sizes: list[int] = []
    retriever = counting(index, [], sizes)
    narrow = [RetrieveRequest(f"q{n}", k=5, method="beam") for n in range(30)]
    retriever.retrieve_batch([*narrow, RetrieveRequest("wide", k=300, method="beam")])
    assert sizes == [30, 1]


def test_requests_too_wide_for_one_forward_are_split(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    retriever = counting(index, [], sizes)
    monkeypatch.setattr(
        "retrieval.methods.batches._MAX_LOGITS_BYTES", 3 * 16 * retriever.model.vocab_size * 4
    )
    results = retriever.retrieve_batch([RetrieveRequest(f"q{n}", k=10, method="beam") for n in range(8)])
    assert sizes == [3, 3, 2]
    assert [r.query for r in results if isinstance(r, RetrievalResult)] == [f"q{n}" for n in range(8)]


def test_requests_of_one_method_share_their_forwards(index: Index) -> None:
    sessions: list[TableSession] = []
    retriever = counting(index, sessions, [])
    retriever.retrieve_batch(
        [RetrieveRequest(f"q{n}", k=3 + n, method="beam", beam_size=9 + n) for n in range(8)]
        + [RetrieveRequest(f"q{n}", k=3, method="disc", temperature=1.0 + n) for n in range(8)]
    )
    assert len(sessions) == 2
    assert sum(session.num_forwards for session in sessions) <= 3 * retriever.trie.max_depth


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


@pytest.mark.parametrize("method", ["auto", "beam", "disc", "shortlist"])
def test_one_monstrous_title_does_not_make_queries_too_long(with_outlier: Retriever, method: str) -> None:
    decoder_only = not with_outlier.model.is_encoder_decoder
    longest = 30 if decoder_only else 60
    for length in (1, longest - 2):
        beam_size = None if method == "disc" else 300
        own_order = {"vector_weight": 0.0} if method == "auto" else {}
        options: dict[str, Any] = {"method": method, "beam_size": beam_size, "seed": 1, **own_order}
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
