"""Explanations of answers: the model's own numbers, texts, ranks and draws, and the same answers without."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Unjoined
from tokenizers import models

from genret import Mention, RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.language_model import PromptPrefix
from genret.retrieval.errors import ModelError
from genret.retrieval.explanation import Explanation
from genret.retrieval.index.reader import Index
from genret.retrieval.methods import explainer as explaining
from genret.retrieval.methods.explainer import TokenTexts
from genret.retrieval.text import TextTokenizer
from tests.checkpoints import END
from tests.fakes import TableModel, TableSession, likely_titles, tokens_after
from tests.table_retrievers import CONFIG, POISON, TOKENIZER, answers, poisoned, without_costs

Row = tuple[int, ...]


class LikelyTitles(TableModel):
    """Favours titles, remembers its last prompt, and breaks behind poisoned ones."""

    prompt: Row = ()

    def __init__(self, index: Index) -> None:
        sound = likely_titles(index, seed=3, boost=3.0)
        super().__init__(TOKENIZER.vocab_size, poisoned(sound, depth=1).logits)

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None) -> TableSession:
        self.prompt = tuple(prompts[-1])
        return super().prefill(prompts, prefix)


@pytest.fixture(scope="module")
def retriever(table_index: Path) -> Iterator[Retriever]:
    index = Index.open(table_index)
    with Retriever(index, LikelyTitles(index), TOKENIZER, CONFIG) as opened:
        yield opened


def explained(retriever: Retriever, request: RetrieveRequest) -> tuple[RetrievalResult, Explanation]:
    (result,) = answers(retriever, replace(request, explain=True))
    return result, result.explanation


def prefixes_of(explanation: Explanation) -> list[Row]:
    written: list[Row] = []
    for place, node in enumerate(explanation.nodes):
        if node.parent is None:
            assert place == 0
            written.append(())
        else:
            assert node.parent < place
            written.append((*written[node.parent], node.token_id))
        assert node.depth == len(written[-1])
    assert len(set(written)) == len(written)
    return written


def text_behind(explanation: Explanation, place: int) -> str:
    """What was written up to a node, the end token's name included."""
    texts: list[str] = []
    node = explanation.nodes[place]
    while node.parent is not None:
        texts.append(node.text)
        node = explanation.nodes[node.parent]
    return "".join(reversed(texts))


beams = st.fixed_dictionaries(
    {
        "method": st.just("beam"),
        "k": st.integers(1, 12),
        "beam_size": st.none() | st.integers(1, 6),
        "exact": st.booleans(),
        "length_penalty": st.sampled_from([0.0, 0.7]),
    }
)
draws = st.fixed_dictionaries(
    {
        "method": st.just("disc"),
        "k": st.integers(1, 5),
        "num_samples": st.integers(1, 6),
        "num_draws": st.integers(1, 4),
        "temperature": st.sampled_from([0.5, 1.0, 2.0]),
        "top_m": st.none() | st.just(40),
        "seed": st.integers(0, 99),
        "min_mass": st.none() | st.just(0.999),
    }
)
filters = st.sampled_from([None, "kind = 'city'", "entity_id in ('Q8', 'Q10')", "kind = 'nothing'"])


@st.composite
def requests(draw: st.DrawFn) -> RetrieveRequest:
    query = draw(st.sampled_from(["one", "two", "a third one"]))
    return RetrieveRequest(query, filter=draw(filters), **draw(beams | draws))


def allowed_rows(retriever: Retriever, request: RetrieveRequest) -> set[Row]:
    index = retriever.index
    kinds = {
        None: lambda entity: True,
        "kind = 'city'": lambda entity: entity.metadata["kind"] == "city",
        "entity_id in ('Q8', 'Q10')": lambda entity: entity.entity_id in ("Q8", "Q10"),
        "kind = 'nothing'": lambda entity: False,
    }
    return {
        index.row_token_ids(rank)
        for rank in range(index.num_rows)
        if any(kinds[request.filter](index.entity(number)) for number in index.entities_of(rank))
    }


@settings(max_examples=120, deadline=None)
@given(requests())
def test_every_number_is_the_models_own(retriever: Retriever, request: RetrieveRequest) -> None:
    result, explanation = explained(retriever, request)
    rows = allowed_rows(retriever, request)
    if not rows:
        assert explanation == Explanation()
        return
    following = tokens_after(rows)
    model: Any = retriever.model
    temperature = request.temperature if request.method == "disc" else 1.0
    below: dict[int, float] = defaultdict(float)
    assert not explanation.truncated
    for node, prefix in zip(explanation.nodes, prefixes_of(explanation), strict=True):
        if node.parent is not None:
            before = torch.log_softmax(model.logits(model.prompt, prefix[:-1]).double() / temperature, -1)
            assert node.logprob == pytest.approx(float(before[node.token_id]), abs=1e-5)
            above = explanation.nodes[node.parent]
            assert node.total_logprob == pytest.approx(above.total_logprob + node.logprob, abs=1e-9)
            assert node.token_id in following[prefix[:-1]]
            below[node.parent] += math.exp(node.logprob)
        if node.state == "expanded":
            after = torch.softmax(model.logits(model.prompt, prefix).double() / temperature, -1)
            mass = float(after[sorted(following[prefix])].sum())
            if request.top_m is None:
                assert node.valid_mass == pytest.approx(mass, rel=1e-5)
                assert node.num_valid == len(following[prefix])
            else:
                assert node.valid_mass <= mass + 1e-6
                assert node.num_valid is None
        else:
            assert (node.valid_mass, node.num_valid) == (None, None)
        assert (node.state == "finished") == (prefix in rows)
    for place, mass in below.items():
        assert mass <= explanation.nodes[place].valid_mass + 1e-6
    assert len([n for n in explanation.nodes if n.state == "expanded"]) - 1 <= result.num_nodes


@settings(max_examples=80, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=4), st.data())
def test_the_answer_is_the_same_with_and_without(
    retriever: Retriever, asked: list[RetrieveRequest], data: st.DataObject
) -> None:
    wanted = [replace(request, explain=data.draw(st.booleans())) for request in asked]
    replies = retriever.retrieve_batch(wanted)
    for request, plain, reply in zip(wanted, retriever.retrieve_batch(asked), replies, strict=True):
        assert (reply.explanation is not None) == request.explain
        assert replace(without_costs(reply), explanation=None) == without_costs(plain)


@settings(max_examples=80, deadline=None)
@given(requests())
def test_texts_and_ranks_are_those_of_the_candidates(retriever: Retriever, request: RetrieveRequest) -> None:
    result, explanation = explained(retriever, request)
    ended: dict[int, list[str]] = defaultdict(list)
    written = prefixes_of(explanation)
    for place, node in enumerate(explanation.nodes):
        if node.state == "finished":
            text = text_behind(explanation, place)
            assert text.startswith(" ")
            assert text.endswith(END)
            # Characters of several tokens are in pieces.
            whole = TOKENIZER.decode(written[place])
            assert "\ufffd" in text or text == whole + END
            text = whole[1:]
            if node.candidate_rank is not None:
                ended[node.candidate_rank].append(text)
            else:
                assert text not in {candidate.surface for candidate in result.candidates}
        else:
            assert node.candidate_rank is None
    for rank, candidate in enumerate(result.candidates, start=1):
        # A surface form that two entities share is the better one's.
        better = [text for r in range(1, rank) for text in ended[r]]
        assert candidate.surface in ended[rank] + better
        entity = retriever.index.entity_by_id(candidate.entity_id)
        assert set(ended[rank]) <= {entity.title, *entity.aliases}


@settings(max_examples=80, deadline=None)
@given(draws, filters)
def test_draws_agree_with_what_the_result_says(
    retriever: Retriever, options: dict[str, Any], predicate: str | None
) -> None:
    request = RetrieveRequest("one", filter=predicate, **{**options, "k": 12, "min_mass": None})
    result, explanation = explained(retriever, request)
    assert len(explanation.draws) == result.num_draws
    chosen = [draw for draw in explanation.draws if draw.chosen]
    assert sum(draw.accepted for draw in chosen) == result.num_accepted
    rows = prefixes_of(explanation)
    ranks = [retriever.index.row_of(rows[draw.node]) for draw in chosen]
    owners = [{retriever.index.entity(n).entity_id for n in retriever.index.entities_of(r)} for r in ranks]
    named = {candidate.entity_id for candidate in result.candidates}
    assert all(named & mine for mine in owners)
    assert named <= set().union(*owners)
    if result.mass:
        first = [draw.valid_mass for draw in explanation.draws if draw.draw < request.num_draws]
        assert math.fsum(first) / len(first) == pytest.approx(result.mass)


def test_the_library_and_links_explain_too(retriever: Retriever) -> None:
    (result,) = retriever.retrieve("one", k=3, explain=True)
    assert result == replace(result, explanation=explained(retriever, RetrieveRequest("one", k=3))[1])
    (linked,) = retriever.link(Mention("Paris"), explain=True)
    assert linked.explanation is not None
    assert retriever.retrieve("one")[0].explanation is None


def test_broken_logits_of_one_query_leave_the_explanations_of_others_whole(retriever: Retriever) -> None:
    asked = [RetrieveRequest(text, k=4, explain=True) for text in ("one", f"two {POISON}", "a third one")]
    first, broken, third = retriever.retrieve_batch(asked)
    assert isinstance(broken, ModelError)
    for reply, request in ((first, asked[0]), (third, asked[2])):
        assert reply.explanation == explained(retriever, request)[1]


@pytest.mark.parametrize("most", [1, 5, 12, 30])
@pytest.mark.parametrize("options", [{"k": 3}, {"method": "disc", "seed": 1, "num_samples": 8}])
def test_what_does_not_fit_is_left_out_from_the_least_wanted_end(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, most: int, options: dict[str, Any]
) -> None:
    request = RetrieveRequest("one", **options)
    whole = explained(retriever, request)[1]
    monkeypatch.setattr(explaining, "MAX_NODES", most)
    result, explanation = explained(retriever, request)
    assert explanation.truncated
    assert len(explanation.nodes) <= most
    written = prefixes_of(explanation)
    assert set(written) <= set(prefixes_of(whole))
    ranked = {node.candidate_rank for node in explanation.nodes} - {None}
    best = next(n for n in whole.nodes if n.candidate_rank == 1)
    if best.depth < most:
        assert ranked
    assert all(written[draw.node] for draw in explanation.draws)
    assert {(d.sample, d.draw) for d in explanation.draws} <= {(d.sample, d.draw) for d in whole.draws}
    assert result.candidates


@pytest.mark.parametrize("most", [1, 7, 15])
def test_of_too_many_draws_those_that_became_samples_are_kept(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    request = RetrieveRequest("one", method="disc", seed=1, num_samples=8)
    whole = explained(retriever, request)[1]
    monkeypatch.setattr(explaining, "MAX_EXPLAINED_DRAWS", most)
    explanation = explained(retriever, request)[1]
    assert explanation.truncated
    assert len(explanation.draws) == most
    assert sum(draw.chosen for draw in explanation.draws) == min(most, 8)
    assert [d for d in whole.draws if d in explanation.draws] == list(explanation.draws)


def test_tokens_have_the_texts_they_write() -> None:
    texts = TokenTexts(TOKENIZER)
    for text in ("Hamlet", " Paris, Texas", "two  blanks\n"):
        assert "".join(texts.text(token) for token in TOKENIZER.encode_text(text)) == text
    assert [texts.text(token) for token in TOKENIZER.encode_text("日")] == ["\ufffd"] * 3
    assert texts.text(TOKENIZER.end_token_id(CONFIG.rendering)) == END
    assert texts.text(TOKENIZER.vocab_size + 5) == ""
    # A tokenizer that does not say how its tokens are joined: they have their names.
    unjoined = Unjoined(models.WordLevel({"big": 0, "city": 1, "?": 2}, unk_token="?"))
    texts = TokenTexts(TextTokenizer(unjoined, None, "words"))
    assert [texts.text(token) for token in range(4)] == ["big", "city", "?", ""]
