"""What `benchmarks/linking.py` is made of: its mentions, its comparisons, its look at the memory."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from genret.retrieval.types import Mention

CATALOGUE = (
    "entity_id\ttitle\taliases\tkind\tdescription\n"
    "E1\tNile\tRiver Nile|Iteru\triver\tA river\n"
    "E2\tParis\t\tcity\tA city\n"
)


@pytest.fixture(autouse=True)
def _import_path(benchmark_path: None) -> None:
    """All tests here import from the benchmarks."""


def test_made_mentions_are_different_and_the_same_every_time(tmp_path: Path) -> None:
    from harness.made_mentions import made_mentions

    catalogue = tmp_path / "catalogue.tsv"
    catalogue.write_text(CATALOGUE, encoding="utf-8")
    mentions = made_mentions(catalogue, 40)
    assert len(set(mentions)) == 40
    assert mentions == made_mentions(catalogue, 40) != made_mentions(catalogue, 40, seed=1)
    assert {mention.mention for mention in mentions} == {"Nile", "River Nile", "Iteru", "Paris"}
    assert all("A river" in m.right or "A city" in m.right for m in mentions)


def test_repeated_mentions_keep_their_number() -> None:
    from harness.made_mentions import repeated

    mentions = [Mention(str(n)) for n in range(10)]
    assert len(repeated(mentions, 4)) == 10
    assert set(repeated(mentions, 4)) == set(mentions[:2])
    assert len(set(repeated(mentions, 100))) == 1


def test_mentions_of_a_file_are_drawn_from_all_of_it(tmp_path: Path) -> None:
    import click
    from harness.made_mentions import mentions_of

    file = tmp_path / "m.jsonl"
    lines = [json.dumps({"mention": f"m{n}", "left": "a "}) for n in (0, 1, 2, 2)]
    file.write_text("\n".join(lines), encoding="utf-8")
    assert {m.mention for m in mentions_of(file, 3)} == {"m0", "m1", "m2"}
    with pytest.raises(click.ClickException, match="expected at least 4 mentions, got 3"):
        mentions_of(file, 4)


def test_documents_mark_their_mention(tmp_path: Path) -> None:
    from harness.made_mentions import as_documents, write_documents

    mentions = [Mention("Nile", "é 🦁 ", " flows"), Mention("Paris")]
    write_documents(tmp_path / "d.jsonl", mentions)
    lines = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text(encoding="utf-8").splitlines()]
    for mention, line, document in zip(mentions, lines, as_documents(mentions), strict=True):
        (marked,) = line["mentions"]
        (span,) = document.spans or ()
        assert line["text"] == document.text
        assert (marked["start"], marked["end"]) == (span.start, span.end)
        assert document.text[span.start : span.end] == mention.mention


def test_answers_agree_by_entity_and_score() -> None:
    from harness.linking_contest import Agreement, Answer

    one = [Answer("E1", -1.0), Answer("E2", -2.0), Answer(None, None), Answer("E3", -1.0)]
    other = [Answer("E1", -1.5), Answer("E2", -2.0), Answer(None, None), Answer("E4", -9.0)]
    assert Agreement.of(one, other) == Agreement(3, 4, 0.5)


def test_memory_is_looked_at_while_the_block_runs() -> None:
    from harness.memory_trace import MemoryTrace

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
