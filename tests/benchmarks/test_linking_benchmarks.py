"""The benchmarks of linking: mentions and documents they are made of, their comparisons, and small runs."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mention_detection
import pytest
from harness.labelled_mentions import LabelledSpan, base_name, read_documents
from harness.processes import MemoryTrace
from linking import as_documents, made_mentions, write_documents

from genret.retrieval.types import Mention
from tests.shared_titles import shared_file

CATALOGUE = (
    "entity_id\ttitle\taliases\tkind\tdescription\n"
    "E1\tNile\tRiver Nile|Iteru\triver\tA river\n"
    "E2\tParis\t\tcity\tA city\n"
)
TEXT = " ".join(f"Sentence {number} is about Red Sea {number}." for number in range(60))


def test_made_mentions_are_different_and_the_same_every_time(tmp_path: Path) -> None:
    catalogue = tmp_path / "catalogue.tsv"
    catalogue.write_text(CATALOGUE, encoding="utf-8")
    mentions = made_mentions(catalogue, 40)
    assert len(set(mentions)) == 40
    assert mentions == made_mentions(catalogue, 40) != made_mentions(catalogue, 40, seed=1)
    assert {mention.mention for mention in mentions} == {"Nile", "River Nile", "Iteru", "Paris"}
    assert all("A river" in m.right or "A city" in m.right for m in mentions)


def test_documents_mark_their_mention(tmp_path: Path) -> None:
    mentions = [Mention("Nile", "é 🦁 ", " flows"), Mention("Paris")]
    write_documents(tmp_path / "d.jsonl", mentions)
    lines = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text(encoding="utf-8").splitlines()]
    for mention, line, document in zip(mentions, lines, as_documents(mentions), strict=True):
        (marked,) = line["mentions"]
        (span,) = document.spans or ()
        assert line["text"] == document.text
        assert (marked["start"], marked["end"]) == (span.start, span.end)
        assert document.text[span.start : span.end] == mention.mention


def test_memory_is_looked_at_while_the_block_runs() -> None:
    with MemoryTrace(interval_s=0.001) as trace:
        block = bytearray(32 << 20)
        block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])
        while len(trace.samples) < 20:
            time.sleep(0.001)
    assert trace.peak_bytes > 32 << 20
    thinned = trace.thinned(5)
    assert len(thinned) <= 5
    assert max(memory for _, memory in thinned) == trace.peak_bytes
    assert [at for at, _ in thinned] == sorted(at for at, _ in thinned)


def test_base_names() -> None:
    names = ("Mercury (planet)", "Cairo, Illinois", "Cairo", "A (b) c", "C++ (language) (x)")
    assert [base_name(name) for name in names] == ["Mercury", "Cairo", None, None, "C++ (language)"]


def test_windows_are_put_together_to_documents(tmp_path: Path) -> None:
    rows = []
    starts = [TEXT.index(f"Red Sea {number}.") for number in (0, 7, 22, 15, 59)]
    for start in starts:
        left, right = TEXT[max(0, start - 250) : start], TEXT[start + 7 : start + 257]
        rows.append({"doc": "d", "left": left, "mention": "Red Sea", "right": right, "title": "Red Sea"})
    rows.append({"doc": "e", "left": "", "mention": "US", "right": "", "title": None, "nil": True})
    file = tmp_path / "x.dev.jsonl.gz"
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    documents = read_documents(file)
    assert [document.doc_id for document in documents] == ["d", "d", "e"]  # between 22 and 59 text is missing
    assert sorted(len(document.spans) for document in documents) == [1, 1, 4]
    for document in documents[:2]:
        assert document.text in TEXT
        assert all(document.text[s.start : s.end] == "Red Sea" for s in document.spans)
    assert documents[2].spans == (LabelledSpan(0, 2, None),)


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_script_counts_what_is_found_and_lost(tmp_path: Path, figures_of: Callable[..., Any]) -> None:
    data = shared_file("el", "lgl.dev.jsonl.gz").parents[1]
    options = ["--data", data, "--work", tmp_path, "--set", "lgl"]
    figures = figures_of(mention_detection.main, *options)["sets"]["lgl"]
    assert figures["linked"] == 308
    counts = figures["counts"]
    assert counts["recalled"] + sum(counts["lost"].values()) == 308
    assert counts["recalled"] > 250
