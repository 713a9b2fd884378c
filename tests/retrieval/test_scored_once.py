"""`auto` asks the model once for a form: what the beams found is not scored anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from genret import Retriever, RetrieveRequest
from genret.decoding.row_scores import score_rows
from genret.index_builder.build_options import EvidenceOptions
from genret.retrieval.methods.decoded_methods import Decoded, decode_by_beam
from genret.retrieval.methods.scored_methods import EntityScorer
from tests.checkpoints import make_checkpoint, make_index, train_tokenizer
from tests.retrieval.test_ranked_answers import catalogue
from tests.table_retrievers import answers

_POSITIONS = 140
# More entities than are scored without being proposed, and aliases that are longer than there is room for.
_LONG = "".join(f"L{number}\tLight {number}\tNile {number}{' Hill' * 150}\t\ta\t1\n" for number in range(4))
CATALOGUE = catalogue() + _LONG


class Anew(EntityScorer):
    """Scores every form, whatever was found."""

    def score(self, *args: Any) -> Any:
        *others, found = args
        return super().score(*others, [{} for _ in found])


@pytest.fixture(scope="module", params=["llama", "bart"])
def once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = train_tokenizer([CATALOGUE])
    checkpoint = make_checkpoint(
        folder / "model", request.param, tokenizer=tokenizer, max_positions=_POSITIONS
    )
    index = make_index(folder, checkpoint, CATALOGUE, evidence=EvidenceOptions())
    with Retriever.open(index, checkpoint, device="cpu", dtype="float64") as opened:
        lengths = [len(opened.index.row_token_ids(row)) for row in range(opened.index.num_rows)]
        assert max(lengths) > _POSITIONS > min(lengths)
        yield opened


@pytest.fixture(scope="module")
def anew(once: Retriever) -> Retriever:
    parts = (once.index, once.model, once.tokenizer, once.config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genret.retrieval.retriever.EntityScorer", Anew)
        return Retriever(*parts, ranker=once.ranker, is_named=False)


def test_the_model_is_asked_for_what_no_beam_found_and_nothing_else(
    once: Retriever, anew: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[tuple[int, ...]]] = []
    found: list[set[tuple[int, ...]]] = []

    def recorded_rows(session: Any, rows: Any, *args: Any) -> Any:
        asked.append({tuple(row) for row in rows[0]})
        return score_rows(session, rows, *args)

    def recorded_beams(*args: Any) -> Any:
        (outcome,) = decode_by_beam(*args)
        assert isinstance(outcome, Decoded)
        found.append({row.token_ids for row in outcome.rows.values()})
        return [outcome]

    monkeypatch.setattr("genret.retrieval.methods.scored_methods.score_rows", recorded_rows)
    monkeypatch.setattr("genret.retrieval.methods.batches.decode_by_beam", recorded_beams)
    request = RetrieveRequest("nile river", k=60, beam_size=40)
    mine, theirs = (answers(retriever, request)[0] for retriever in (once, anew))
    assert found[0] == found[1]
    assert asked[0] == asked[1] - found[1]
    assert asked[0] < asked[1]
    assert mine.num_nodes < theirs.num_nodes
