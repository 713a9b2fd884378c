"""A retriever whose model runs in another process answers as one whose model runs here."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from grpc import StatusCode

from genret import Mention, RetrievalResult, Retriever
from genret.decoding.errors import EngineError
from genret.retrieval.engines.vllm_engine import open_engine
from genret.retrieval.errors import GenretError, InputError, MissingExtraError, ModelError
from genret.retrieval.linking.link_command import link_command
from genret.service.status import failure_of
from tests import fake_vllm
from tests.commands import refusal, succeed

QUERIES = ["a play", "river in africa", "the planet"]
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "x-genret-index": "titles"}, "sure": {"type": "boolean"}},
    "required": ["title", "sure"],
}


class Both:
    """A retriever here, and the address of a server that runs the same model."""

    def __init__(self, index: Path, checkpoint: Path, tap: Path) -> None:
        self.index, self.checkpoint, self.tap = index, checkpoint, tap
        self.here = Retriever.open(index, checkpoint, dtype="float32")

    def next_logits(self, sequences: Sequence[tuple[int, ...]]) -> torch.Tensor:
        return self.here.model.prefill([list(one) for one in sequences]).root_logits

    def serve(self, tap: Path | None, port: int = 0) -> Any:
        return fake_vllm.server(self.next_logits, tap, 512, port)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, index: Path, checkpoint: Path) -> Both:
    return Both(index, checkpoint, tmp_path_factory.mktemp("tap"))


@pytest.fixture(autouse=True)
def _folder(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENRET_TAP", str(both.tap))


@pytest.fixture
def there(both: Both) -> Iterator[Retriever]:
    with both.serve(both.tap) as port:
        address = f"http://127.0.0.1:{port}/v1"
        with Retriever.open(both.index, both.checkpoint, engine=address) as retriever:
            yield retriever


def facts(result: RetrievalResult) -> tuple[Any, ...]:
    found = [(one.entity_id, one.surface, round(one.logprob, 3)) for one in result.candidates]
    return found, result.certified, result.num_accepted, result.seed


@pytest.mark.parametrize(
    "options",
    [
        {"method": "beam"},
        {"method": "beam", "exact": True, "filter": "kind != 'work'"},
        {"method": "beam", "length_penalty": 0.7, "beam_size": 3},
        {"method": "disc", "seed": 7, "num_samples": 6},
        {"method": "disc", "seed": 7, "temperature": 0.6, "deny_ids": ["Q1"]},
        {"method": "shortlist"},
        {"method": "auto"},
    ],
)
def test_retrieve(both: Both, there: Retriever, options: dict[str, Any]) -> None:
    here = both.here.retrieve(QUERIES, k=4, **options)
    assert [facts(one) for one in there.retrieve(QUERIES, k=4, **options)] == [facts(one) for one in here]


def test_link_score_and_answer(both: Both, there: Retriever) -> None:
    mention = Mention("Amazon", "The ", " flows east")
    assert facts(there.link(mention)[0]) == facts(both.here.link(mention)[0])
    titles = ["Hamlet", "Nile", "not a title"]
    ours, theirs = (one.score("a play", titles).scores for one in (there, both.here))
    assert [one.logprob for one in ours] == pytest.approx([one.logprob for one in theirs], abs=1e-4)
    for method in ("greedy", "disc", "beam"):
        options = {"method": method, "max_tokens": 60, **({"seed": 3} if method == "disc" else {})}
        assert (
            there.answer("river", SCHEMA, **options).text == both.here.answer("river", SCHEMA, **options).text
        )
    assert list(both.tap.iterdir()) == []  # every file that was left was read


def test_a_corpus_is_linked(both: Both, tmp_path: Path) -> None:
    """By workers in processes of their own; with the engine in the run's identity."""
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "out"
    text = "The play Hamlet is long, and so is the Nile."
    spans = [{"start": text.index(name), "end": text.index(name) + len(name)} for name in ("Hamlet", "Nile")]
    corpus.write_text(json.dumps({"text": text, "mentions": spans}) + "\n")
    arguments = [corpus, "--index", both.index, "--model", both.checkpoint, "--device", "cpu", "--workers", 2]
    succeed(link_command, *arguments, "--dtype", "float32", "--out", tmp_path / "here")
    with both.serve(both.tap) as port:
        engine = ["--engine", f"http://127.0.0.1:{port}/v1", "--dtype", "float32"]
        succeed(link_command, *arguments, *engine, "--out", out)
    ours, theirs = (pq.read_table(folder).to_pylist() for folder in (out, tmp_path / "here"))
    assert [row["entity_id"] for row in ours] == [row["entity_id"] for row in theirs]
    assert [row["logprob"] for row in ours] == pytest.approx([row["logprob"] for row in theirs], abs=1e-3)
    assert "--engine was vllm, is now not given" in refusal(link_command, *arguments, "--out", out, code=1)


def test_a_server_that_ends_and_comes_back(both: Both) -> None:
    with both.serve(both.tap) as port:
        retriever = Retriever.open(both.index, both.checkpoint, engine=f"http://127.0.0.1:{port}/v1")
        expected = facts(retriever.retrieve("a play", method="beam")[0])
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        retriever.retrieve("a play", method="beam")
    failure = failure_of(caught.value, "id")
    assert failure.code is StatusCode.UNAVAILABLE
    assert "127.0.0.1" not in failure.message
    assert [detail.message for detail in failure.details] == ["ErrorInfo", "RetryInfo"]
    with both.serve(both.tap, port):
        assert facts(retriever.retrieve("a play", method="beam")[0]) == expected


def test_a_server_without_our_processor_is_refused(both: Both) -> None:
    with both.serve(None) as port, pytest.raises(ModelError) as caught:
        open_engine(f"http://127.0.0.1:{port}/v1", both.checkpoint)
    assert "--logits-processors genret.retrieval.engines.vllm_processors:TitleProcessor" in str(caught.value)
    assert str(both.tap) in str(caught.value)


def test_what_cannot_be_an_engine_is_named(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="must be 'vllm' or the address"):
        open_engine("vlm", both.checkpoint)
    with pytest.raises(InputError, match="engine_options"):
        open_engine("http://localhost:1/v1", both.checkpoint, options={"max_model_len": 3})
    with pytest.raises(ModelError, match="cannot be reached"):
        open_engine("http://127.0.0.1:1/v1", both.checkpoint)
    imported = builtins.__import__

    def without_vllm(name: str, *more: Any) -> Any:
        if name == "vllm":
            raise ImportError(name)
        return imported(name, *more)

    monkeypatch.setattr(builtins, "__import__", without_vllm)
    with pytest.raises(MissingExtraError, match=r"genret\[vllm\]|vllm") as caught:
        open_engine("vllm", both.checkpoint)
    assert isinstance(caught.value, GenretError)
