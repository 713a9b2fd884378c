"""`link_documents`: texts and documents from a program, and names exported lazily."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import genret.retrieval.linking
from genret.retrieval.errors import InputError
from genret.retrieval.linking import Document, LinkCounts, LinkOptions, Span, link_documents
from genret.retrieval.linking.finding import finder as finder_module
from genret.retrieval.types import Entity
from tests.scripted_linking import Names, ScriptedRetriever


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The options of every finder that was opened; each finds "Nile"."""
    made: list[object] = []

    def open_finder(index: object, options: object, cache_dir: object) -> Names:
        made.append(options)
        return Names({"Nile": ["E1"]})

    monkeypatch.setattr(finder_module, "open_finder", open_finder)
    return made


def link(documents: Any, options: LinkOptions | None = None, **more: Any) -> Iterator[dict[str, Any]]:
    retriever = ScriptedRetriever(entities={"E1": Entity("E1", "Nile")})
    return link_documents(retriever, documents, options, **more)  # type: ignore[arg-type]


def test_texts_are_linked_by_the_names_of_the_index(opened: list[object]) -> None:
    rows = list(link(["The Nile.", "nothing", "A Nile"]))
    assert [(row["doc_id"], row["start"], row["entity_id"]) for row in rows] == [
        ("documents:1", 4, "E1"),
        ("documents:3", 2, "E1"),
    ]
    assert opened == [LinkOptions().find]


def test_the_finder_is_not_made_where_nothing_is_looked_for(opened: list[object]) -> None:
    counts = LinkCounts()
    marked = Document("notes", 1, "n", "Mercury is liquid", (Span(0, 7, "m"),))
    (row,) = link([marked], counts=counts)
    assert (row["mention"], row["mention_id"], row["entity_id"]) == ("Mercury", "m", "EMercury")
    assert counts.num_linked == 1
    assert opened == []


def test_documents_are_read_as_rows_are_taken() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "Nile"

    assert next(link(endless(), batch_size=1))["doc_id"] == "documents:1"


def test_failed_mentions_are_rows_and_complaints(caplog: pytest.LogCaptureFixture) -> None:
    document = Document("notes", 1, "n", "broken", (Span(0, 6),))
    lines: list[str] = []
    (row,) = link([document], complain=lines.append)
    assert row["nil_reason"] == "error"
    assert lines == ["notes, line 1: document 'n', characters [0, 6): the model is broken in two lines"]
    assert not caplog.records
    list(link([document]))
    assert [record.getMessage() for record in caplog.records] == lines


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ("a text", r"documents: must be a sequence of documents, got str"),
        (["x", 5], r"documents\[1\]: must be a str or a Document, got int"),
        (["\ud800"], r"documents\[0\]: not valid Unicode: half a surrogate pair at character 1"),
        (
            [Document("f", 1, "d", "abc", (Span(0, 1), Span(2, 4)))],
            r"documents\[0\].spans\[1\]: must lie in the text, 0 <= start < end <= 3; got start 2, end 4",
        ),
        (
            [Document("f", 1, "d", "abc", (Span(1, 1),))],
            r"documents\[0\].spans\[0\]: must lie in the text, .* got start 1, end 1",
        ),
    ],
)
def test_what_is_no_document_is_named(documents: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(link(documents))


def test_options_are_checked_before_anything_is_read() -> None:
    with pytest.raises(InputError, match="prompt: unknown template"):
        link([], LinkOptions(prompt="x"))
    with pytest.raises(InputError, match="batch_size: must be at least 1, got 0"):
        link([], batch_size=0)


def test_names_are_exported_lazily() -> None:
    assert dir(genret.retrieval.linking) == sorted(genret.retrieval.linking.__all__)
    for name in genret.retrieval.linking.__all__:
        assert getattr(genret.retrieval.linking, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = genret.retrieval.linking.nonsense
    code = (
        "import sys; from genret.retrieval.linking import Document, LinkOptions, link_documents; "
        "print(sorted({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
