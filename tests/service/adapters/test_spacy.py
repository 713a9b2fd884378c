"""The entity linker of spaCy: pipelines with rules, batches, files of pipelines, NIL, both places."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

spacy = pytest.importorskip("spacy")

from spacy.tokens import Doc  # noqa: E402

from genret.retrieval.errors import InputError  # noqa: E402
from genret.retrieval.retriever import Retriever  # noqa: E402
from genret.retrieval.types import Mention  # noqa: E402
from genret.service.client import CallError  # noqa: E402

TEXTS = [
    "We flew to Paris on Monday.",
    "Nothing is named here.",
    "The Amazon is longer than the Nile, they say in Paris.",
]
NAMES = {"Paris": "PLACE", "Amazon": "PLACE", "Nile": "PLACE", "Monday": "DATE"}


def pipeline(**config: Any) -> Any:
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": label, "pattern": name} for name, label in NAMES.items()])
    nlp.add_pipe("genret_linker", config={"labels_discard": ["DATE"], **config})
    return nlp


def links(docs: Any) -> list[tuple[str, str]]:
    return [(ent.text, ent.kb_id_) for doc in docs for ent in doc.ents]


def test_links_are_those_of_the_retriever(place: dict[str, Any], retriever: Retriever) -> None:
    nlp = pipeline(**place, k=3)
    docs = list(nlp.pipe(TEXTS, batch_size=2))
    assert [doc.text for doc in docs] == TEXTS
    ents = [ent for doc in docs for ent in doc.ents]
    assert [ent.text for ent in ents] == ["Paris", "Monday", "Amazon", "Nile", "Paris"]
    for ent in ents:
        if ent.label_ == "DATE":
            assert (ent.kb_id_, ent._.genret_title, ent._.genret_candidates) == ("", None, None)
            continue
        text = ent.doc.text
        mention = Mention(ent.text, text[: ent.start_char], text[ent.end_char :])
        (found,) = retriever.link(mention, k=3)
        best = found.candidates[0]
        assert ent.kb_id_ == best.entity_id
        assert ent._.genret_title == best.title
        assert ent._.genret_probability == pytest.approx(best.probability, abs=1e-5)
        assert [c["entity_id"] for c in ent._.genret_candidates] == [c.entity_id for c in found.candidates]
        assert ent._.genret_candidates[0]["kind"] == best.metadata["kind"]
    assert links([nlp(text) for text in TEXTS]) == links(docs)
    nlp.get_pipe("genret_linker").source.close()


def test_a_pipeline_is_written_and_read(place: dict[str, Any], tmp_path: Path) -> None:
    nlp = pipeline(**place, options={"filter": "kind != 'city'"}, min_probability=0.0, nil="none")
    nlp.to_disk(tmp_path / "nlp")
    again = spacy.load(tmp_path / "nlp")
    assert again.config["components"] == nlp.config["components"]
    docs = list(nlp.pipe(TEXTS))
    assert links(again.pipe(TEXTS)) == links(docs)
    read = Doc(again.vocab).from_bytes(docs[2].to_bytes())
    assert links([read]) == links([docs[2]])
    assert [ent._.genret_candidates for ent in read.ents] == [ent._.genret_candidates for ent in docs[2].ents]
    for one in (nlp, again):
        one.get_pipe("genret_linker").source.close()


def test_what_the_index_lacks_is_nil(retriever: Retriever, index: Path, checkpoint: Path) -> None:
    place = {"index": str(index), "model": str(checkpoint)}
    none = pipeline(**place, options={"allow_ids": []})
    assert links([none(TEXTS[0])]) == [("Paris", "NIL"), ("Monday", "")]
    assert none(TEXTS[0]).ents[0]._.genret_probability is None
    unsure = pipeline(**place, min_probability=1.0, nil="?")
    assert links([unsure(TEXTS[0])]) == [("Paris", "?"), ("Monday", "")]
    (doubted,) = unsure(TEXTS[0]).ents[0]._.genret_candidates
    assert (
        doubted["entity_id"]
        == retriever.link(Mention("Paris", "We flew to ", " on Monday."))[0].candidates[0].entity_id
    )
    beam = pipeline(**place, method="beam")(TEXTS[0]).ents[0]
    assert 0 < beam._.genret_probability <= 1, "P(e | q) where the method has no other"


def test_errors_go_to_the_pipelines_handler(place: dict[str, Any]) -> None:
    nlp = pipeline(**place, options={"filter": "year = 3"})
    with pytest.raises((InputError, CallError), match="unknown column 'year'"):
        nlp(TEXTS[0])
    with pytest.raises((InputError, CallError), match="unknown column 'year'"):
        list(nlp.pipe(TEXTS))
    heard: list[tuple[str, list[str]]] = []
    nlp.set_error_handler(lambda name, component, docs, error: heard.append((name, [d.text for d in docs])))
    assert [doc.text for doc in nlp.pipe(TEXTS, batch_size=1)] == [TEXTS[1]], "without entities, no question"
    assert heard == [("genret_linker", [TEXTS[0]]), ("genret_linker", [TEXTS[2]])]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"index": "i", "min_probability": 2}, r"min_probability: must be in \[0, 1\], got 2"),
        ({"index": "i", "context_chars": -1}, "context_chars: must be an integer of at least 0, got -1"),
        ({"index": "i", "options": {"prompt": "p"}}, "prompt: is the checkpoint's own for mentions"),
        ({"index": "i", "labels_discard": "P"}, "labels_discard: must be a list of labels, got 'P'"),
        ({"index": "i", "k": 0}, r"k: must be in \[1, 1000\], got 0"),
    ],
)
def test_what_cannot_be_used_is_refused_when_made(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        pipeline(**config)


@pytest.mark.slow
def test_processes_open_the_index_each(index: Path, checkpoint: Path, tmp_path: Path) -> None:
    """In a process of its own: this one has a model, whose threads do not outlive a fork."""
    pipeline(index=str(index), model=str(checkpoint)).to_disk(tmp_path / "nlp")
    code = f"""
import spacy
nlp = spacy.load({str(tmp_path / "nlp")!r})
texts = ["Paris", "the Nile"] * 3
apart = [doc.ents[0].kb_id_ for doc in nlp.pipe(texts, n_process=2)]
print(apart == [doc.ents[0].kb_id_ for doc in nlp.pipe(texts)] and len(apart) == 6)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "True\n", done.stderr
