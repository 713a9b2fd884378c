"""Lines of a catalogue: titles under the text policy, bad rows, and how these are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import SourceError
from genret.retrieval.normalize import (
    NormalizationReport,
    find_control,
    find_html_entity,
    is_normalized_block,
    normalize,
    resolve_html,
)
from genret.retrieval.sources import source_files
from genret.retrieval.sources.columns import ColumnMapping
from genret.retrieval.sources.records import Record, RejectReason, Rejects
from genret.retrieval.sources.title_source import TitleSource
from tests.catalogue_files import lenient, read_batches


def read(
    folder: Path, data: str | bytes, **options: Any
) -> tuple[list[Record], Rejects, NormalizationReport]:
    """Return all good and all bad rows of a file, and what was changed and found in the good ones."""
    file = folder / "titles.tsv"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    with TitleSource(file, **options) as source:
        batches, rejects = read_batches(source, 2, limit=100)
    report = sum((batch.normalization for batch in batches), NormalizationReport())
    return [record for batch in batches for record in batch.records], rejects, report


def test_lines_with_bom_and_carriage_returns(tmp_path: Path) -> None:
    records, rejects, _ = read(tmp_path, "\ufeffÅbo\r\nNew  York \r\nthird")
    assert [(r.line, r.title) for r in records] == [(1, "Åbo"), (2, "New York"), (3, "third")]
    assert not rejects.rows


def test_header_finds_columns_in_any_order_and_case(tmp_path: Path) -> None:
    data = "kind\tAliases\tTitle\tEntity_ID\tYear\nfilm\tb| a |A||b\tA\tq1\t\n"
    assert read(tmp_path, data)[0] == [Record(0, 2, "q1", "A", ("b", "a"), ("film", None))]
    with TitleSource(tmp_path / "titles.tsv") as source:
        assert source.columns.names == ("kind", "Year")


def test_a_forced_format_says_what_the_word_title_is(tmp_path: Path) -> None:
    assert [r.title for r in read(tmp_path, b"title\nA\n", source_format="lines")[0]] == ["title", "A"]
    assert [r.title for r in read(tmp_path, b"title\nA\n")[0]] == ["A"]
    with pytest.raises(SourceError, match="no column is called 'title'"):
        read(tmp_path, b"name\nA\n", source_format="tsv")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"q1\t", "no title"),
        (b"q1\t \xc2\xa0 ", "no title"),
        (b"", "no title"),
        (b"\tA", "no entity_id"),
        (b"q1\t\xff", "not valid UTF-8"),
        (b"q1\tA\x07", "control character"),
        (b"q1\tA\x00", "control character"),
        (b"q1\tA\r", ""),
        (b"q1\tA\r\r", "control character"),
        ("q1\tA\x85B".encode(), "control character"),
        (b"q1\tA\tB", "too many tabs"),
        (b"q1", "too few fields"),
    ],
)
def test_bad_rows_are_named_with_their_line(tmp_path: Path, line: bytes, reason: str) -> None:
    records, rejects, _ = read(tmp_path, b"entity_id\ttitle\nq0\tfine\n" + line + b"\nq2\tfine too\n")
    assert [r.line for r in records] == ([2, 4] if reason else [2, 3, 4])
    assert [(r.line, r.reason) for r in rejects.rows] == ([(3, reason)] if reason else [])


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "MAX_LINE_BYTES", 10)
    with pytest.raises(SourceError, match="longer than 10 bytes"):
        read(tmp_path, b"A" * 100)


def test_reading_stops_when_nearly_everything_is_bad(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="reading stopped here: is this a file of titles"):
        read(tmp_path, b"title\tkind\n" + b"x\n" * 10_102)
    rows, mapping = b"title\tkind\n" + b"x\ty\n" * 10_102, ColumnMapping(weight="kind")
    with pytest.raises(SourceError, match="reading stopped here: is 'kind' the right column"):
        read(tmp_path, rows, mapping=mapping)
    _, few, _ = read(tmp_path, rows[:30], mapping=mapping)
    few.limit = 0
    with pytest.raises(SourceError, match=r"\(they are then left out\)\nis 'kind' the right column\?$"):
        few.check()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  a \u00a0\u2003 b\u2028c ", "a b c"),
        ("e\u0301", "é"),
        ("\ufb01", "\ufb01"),  # compatibility forms stay
        ("a\u200bb", "a\u200bb"),  # zero-width marks stay
        ("&amp;", "&amp;"),
    ],
)
def test_normalize(text: str, expected: str) -> None:
    assert normalize(text) == expected
    assert normalize(expected) == expected


def test_find_control() -> None:
    assert find_control("a\tb é \u00a0\u200b 東") is None
    assert find_control("a\x1bb") == "U+001B"
    assert find_control("a\x9fb") == "U+009F"


lines = st.text(alphabet="a \té\u0301\u00a0\u2028\u200b\u0000\r\x85東", max_size=10)


@given(st.lists(lines, min_size=1, max_size=5))
def test_a_normalized_block_is_one_whose_fields_all_are(block: list[str]) -> None:
    text = "\n".join(block)
    fields = [field for line in text.split("\n") for field in line.split("\t")]
    are_fine = all(field == normalize(field) for field in fields) and all(
        find_control(line) is None for line in text.split("\n")
    )
    if is_normalized_block(text):
        assert are_fine
    elif are_fine:
        assert not text.replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("&amp;", True),
        ("a &#38; b", True),
        ("&#x26;", True),
        ("&frac12;", True),
        ("R&B; x", False),
        ("a & b; c", False),
        ("AT&T", False),
        ("&;", False),
        ("&#;", False),
    ],
)
def test_html_entities(text: str, found: bool) -> None:
    assert find_html_entity(text) == found


def test_what_was_changed_and_found_is_counted_in_titles_of_good_rows(tmp_path: Path) -> None:
    rows = (
        "e\u0301\t e\u0301 ",
        " two  words\t",
        "AT&amp;T\t&amp;",
        "plain\t",
        " \u0301e\u0301 \t",
        "bad  \x07\t",
    )
    data = "\n".join(("title\tkind", *rows))
    records, rejects, report = read(tmp_path, data)
    assert [r.title for r in records] == ["é", "two words", "AT&amp;T", "plain", "\u0301é"]
    assert report == NormalizationReport(composed=2, respaced=2, html_entities=1)
    assert len(rejects.rows) == 1


def test_html_entities_are_resolved_on_request(tmp_path: Path) -> None:
    data = "title\taliases\nAT&amp;T\t&lt;x&gt;\na&nbsp;b\t\nc&#7;d\t\n&amp;amp;\t\nR&B\t\n&#10;e\t\n"
    records, rejects, report = read(tmp_path, data, unescape_html=True)
    assert [r.title for r in records] == ["AT&T", "a b", "cd", "&amp;", "R&B", "e"]
    assert report == NormalizationReport(respaced=2, html_entities=1, unescaped=5)
    assert not rejects.rows


@lenient(max_examples=25)
@given(
    titles=st.lists(st.text("ab é\u0301\u00a0\u200b&;mp", min_size=1, max_size=8), min_size=1, max_size=700),
    with_aliases=st.booleans(),
)
def test_the_quick_way_is_the_slow_way(tmp_path: Path, titles: list[str], with_aliases: bool) -> None:
    header = "title\taliases\tkind" if with_aliases else "title\tkind"
    middle = "\t" if with_aliases else ""
    data = "\n".join([header, *(f"{title}\t{middle}k" for title in titles)]) + "\n"
    records, rejects, report = read(tmp_path, data)
    good = [title for title in titles if normalize(title)]
    assert [r.title for r in records] == [normalize(title) for title in good]
    assert len(rejects.rows) == len(titles) - len(good)
    assert report.html_entities == sum(find_html_entity(normalize(title)) for title in good)


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("Q&amp;A", "Q&A"),
        ("&#38;&#x26;&lt;&eacute;", "&&<é"),
        ("&amp;amp;", "&amp;"),
        ("AT&LTD", "AT&LTD"),
        ("Rock&notes, &copy 2020", "Rock&notes, &copy 2020"),
        ("&notable; &unknown;", "&notable; &unknown;"),
        ("&AMP; &Amp;", "& &Amp;"),
    ],
)
def test_only_whole_html_entities_are_resolved(text: str, resolved: str) -> None:
    assert resolve_html(text) == resolved


def test_one_file_is_not_named_again_and_several_are() -> None:
    one = Rejects("a.tsv", 0, files=("a.tsv",))
    one.add(3, RejectReason.NO_TITLE, "x\t")
    assert one.report() == "a.tsv: 1 bad row (allowed: 0): 1 × no title\n  line 3: no title: 'x\\t'"
    several = Rejects("a.tsv and 1 more file", 0, files=("a.tsv", "b.tsv"))
    several.add(2, RejectReason.BAD_JSON, b"{\xff", "an end", file=1)
    assert several.report().startswith("b.tsv: 1 bad row ")
    several.add(9, RejectReason.NO_TITLE, "", file=0)
    assert several.report().splitlines() == [
        "a.tsv and 1 more file: 2 bad rows (allowed: 0): 1 × bad JSON, 1 × no title",
        "  a.tsv, line 9: no title: ''",
        "  b.tsv, line 2: bad JSON (an end): '{\\xff'",
    ]


def test_the_file_of_bad_rows_is_a_table(tmp_path: Path) -> None:
    rejects = Rejects("c", 10, files=("a.tsv", "b.tsv"))
    rejects.add(5, RejectReason.BAD_VALUE, "y\tz", "got 'a\tb'", file=1)
    rejects.add(7, RejectReason.NO_TITLE, "", file=0)
    rejects.write(tmp_path / "rejects.tsv")
    assert (tmp_path / "rejects.tsv").read_text() == (
        "file\tline\treason\tdetail\ttext\n"
        "a.tsv\t7\tno title\t\t''\nb.tsv\t5\tbad value\tgot 'a b'\t'y\\tz'\n"
    )
    Rejects("c", 10).write(tmp_path / "rejects.tsv")
    assert not (tmp_path / "rejects.tsv").exists()
