"""Comma-separated files: what Python's csv writes comes back, odd files read as csv and Arrow read them."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.csv
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genret.index_builder.build_options import BuildOptions
from genret.retrieval.errors import SourceError
from genret.retrieval.normalize import normalize
from genret.retrieval.sources import row_readers, source_files
from genret.retrieval.sources.columns import ColumnMapping
from genret.retrieval.sources.records import Record, Rejects
from genret.retrieval.sources.title_source import TitleSource
from tests.catalogue_files import check_positions, lenient, read_file

cell = st.text(alphabet="aé\u0301東 \t,;|\"'\n\r", max_size=8)
rows = st.lists(st.tuples(cell, cell, cell), min_size=1, max_size=30)
dialects = st.fixed_dictionaries(
    {
        "delimiter": st.sampled_from(",;|\t"),
        "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
        "lineterminator": st.sampled_from(["\r\n", "\n"]),
    }
)


def written(folder: Path, text: str, name: str = "c.csv", encoding: str = "utf-8") -> Path:
    file = folder / name
    file.write_bytes(text.encode(encoding))
    return file


def table(lines: list[tuple[str, ...]], **dialect: object) -> str:
    text = io.StringIO()
    csv.writer(text, **dialect).writerows(lines)  # type: ignore[arg-type]
    return text.getvalue()


def found(file: Path, **options: Any) -> tuple[list[Record], list[tuple[int, str]]]:
    records, rejects = read_file(file, **options)
    return records, [(row.line, str(row.reason)) for row in rejects.rows]


@lenient(max_examples=150)
@given(lines=rows, dialect=dialects, bom=st.booleans(), block=st.sampled_from([1, 2, 7, 64, 1 << 18]))
@example(
    # The first batch has a quote, what follows it has none: a row is told alike in both.
    lines=[('"', "x", "")] * 3 + [("", "", " ")],
    dialect={"delimiter": "\t", "quoting": csv.QUOTE_MINIMAL, "lineterminator": "\n"},
    bom=False,
    block=1 << 18,
)
def test_what_csv_writes_comes_back_with_the_line_where_it_begins(
    tmp_path: Path, lines: list[tuple[str, str, str]], dialect: dict[str, str], bom: bool, block: int
) -> None:
    if dialect["lineterminator"] == "\n":  # csv.writer does not quote a cell for a bare \r then
        lines = [(a.replace("\r", "\n"), b.replace("\r", "\n"), c.replace("\r", "\n")) for a, b, c in lines]
    text = table([("kind", "Title", "aliases"), *lines], **dialect)
    file = written(tmp_path, text, encoding="utf-8-sig" if bom else "utf-8")
    expected, bad, line = [], [], 2
    for kind, title, aliases in lines:
        if normalize(title):
            forms = dict.fromkeys(form for form in map(normalize, aliases.split("|")) if form)
            forms.pop(normalize(title), None)
            expected.append(Record(0, line, None, normalize(title), tuple(forms), (normalize(kind) or None,)))
        else:
            bad.append((line, "no title"))
        line += 1 + (kind + title + aliases).count("\n")
    with mock.patch.object(source_files, "_BLOCK_BYTES", block):
        assert found(file) == (expected, bad)
        assert found(file, mapping=ColumnMapping(delimiter=dialect["delimiter"])) == (expected, bad)
        check_positions(file, 3)


def by_python(body: str) -> tuple[list[tuple[int, str, str]], list[int]] | None:
    """Return line and cells of every row as csv sees them, and the lines of bad ones; None: an open quote."""
    reader = csv.reader((line + "\n" for line in body.removesuffix("\n").split("\n")), strict=True)
    good: list[tuple[int, str, str]] = []
    bad: list[int] = []
    while True:
        begin = reader.line_num + 2
        try:
            row = next(reader)
        except StopIteration:
            return good, bad
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                return None
            bad.append(begin)
            continue
        if len(row) == 2 and normalize(row[1]):
            good.append((begin, row[0], row[1]))
        else:
            bad.append(begin)


@lenient(max_examples=300)
@given(
    body=st.text(alphabet='ab,"\n\r', max_size=40).filter(str.strip), block=st.sampled_from([1, 5, 1 << 18])
)
def test_odd_files_are_read_as_python_reads_them(tmp_path: Path, body: str, block: int) -> None:
    """Arrow agrees wherever Python finds nothing wrong."""
    file = written(tmp_path, "kind,title\n" + body)
    oracle = by_python(body)
    with mock.patch.object(source_files, "_BLOCK_BYTES", block):
        if oracle is None:
            with pytest.raises(SourceError, match="has a quote that is not closed by the end of the file"):
                found(file)
            return
        good, bad = oracle
        records, rejected = found(file)
    assert [(r.line, r.title, r.metadata) for r in records] == [
        (line, normalize(title), (normalize(kind) or None,)) for line, kind, title in good
    ]
    assert [line for line, _ in rejected] == bad
    if not bad and "\r" not in body.replace("\r\n", "\n"):  # at which Arrow ends a line
        options = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
        as_text = pyarrow.csv.ConvertOptions(column_types={"kind": "string", "title": "string"})
        read = pyarrow.csv.read_csv(str(file), parse_options=options, convert_options=as_text).to_pylist()
        assert [(normalize(row["kind"]), normalize(row["title"])) for row in read] == [
            (normalize(kind), normalize(title)) for _, kind, title in good
        ]


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        ("", "no title", ""),
        ("q1, ", "no title", ""),
        (",A", "no entity_id", ""),
        ("q1", "too few fields", "expected 2 fields, got 1"),
        ("q1,Hello, World", "too many fields", "expected 2 fields, got 3; a field with ',' needs quotes"),
        ('q1,"A" Team', "bad CSV", "text behind a closing quote: ',' expected after '\"'"),
        ("q1,A\x07", "control character", "U+0007"),
        ('q1,"A\x07"', "control character", "U+0007"),
        ("q1,A\rB", "control character", "U+000D"),
        ('"q1",A\rB', "control character", "U+000D"),
        ("q1,\udcff", "not valid UTF-8", "column 'title'"),
        ('q1,"\udcff"', "not valid UTF-8", "column 'title'"),
    ],
)
@pytest.mark.parametrize("before", ["q0,fine\n", '"q0","fi\nne"\n'])
def test_bad_rows_are_named_with_the_line_where_they_begin(
    tmp_path: Path, before: str, line: str, reason: str, detail: str
) -> None:
    file = tmp_path / "c.csv"
    data = f"entity_id,title\n{before}{line}\nq2,fine too\n"
    file.write_bytes(data.encode("utf-8", errors="surrogateescape"))
    first = 3 + before.count("\n") - 1
    records, rejects = read_file(file)
    assert [r.line for r in records] == [2, first + 1]
    assert [(r.line, r.reason, r.detail) for r in rejects.rows] == [(first, reason, detail)]
    assert not [odd for odd in ("\n", "\\t") if odd in rejects.rows[0].told()]


def test_a_quote_that_is_never_closed_is_an_error_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, 'title,kind\nA,"x\ny"\nB,"z\n' + "C,d\n" * 1000)
    with pytest.raises(
        SourceError, match=r"c.csv: line 4: .* a quote that is not closed by the end of the file"
    ):
        found(file)
    monkeypatch.setattr(row_readers, "MAX_LINE_BYTES", 100)
    with pytest.raises(SourceError, match=r"c.csv: line 4: .* is longer than 100 characters; is a quote not"):
        found(file)
    file = written(tmp_path, 'title,"kind\n' + "C,d\n" * 100_000)
    with pytest.raises(SourceError, match=r"line 1 begins no header of a CSV file"):
        found(file, source_format="csv")


def test_a_cell_may_be_long_and_a_line_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * 300_000
    records, rejected = found(written(tmp_path, f'title,note\nA,"{long}"\nB,{long}\n'))
    assert ([r.metadata for r in records], rejected) == ([(long,)] * 2, [])
    monkeypatch.setattr(source_files, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(source_files, "_BLOCK_BYTES", 100)
    with pytest.raises(SourceError, match="line 2 is longer than 1000 bytes"):
        found(tmp_path / "c.csv")


@pytest.mark.parametrize(
    ("name", "text", "titles"),
    [
        ("c", "title,kind\na,b\n", ["a"]),
        ("c", "id;Title;kind\n1;a, b;c\n", ["a, b"]),
        ("c", "title|kind\na;b|c\n", ["a;b"]),
        ("c", '"kind","title"\n"x","a, b"\n', ["a, b"]),
        ("c", '"kind"\t"title"\nx\ta "b"\ny\t"c"\n', ['a "b"', "c"]),
        ("c", 'kind\ttitle\nx\t"c"\n', ['"c"']),  # tabs and no quotes in the header: TSV
        ("c.csv", 'kind\ttitle\nx\t"c"\n', ["c"]),
        ("c", "'title','kind'\n'a, b','c'\n", ["a, b"]),
        ("c", 'title, kind\n"a, b", "c, d"\n', ["a, b"]),
        ("c.csv", 'title\n"a, b"\nc\n', ["a, b", "c"]),
        ("c.csv", "title\nHello, World\nc\n", ["Hello, World", "c"]),  # no line has the commas of a table
        ("c", "title\nHello, World\n", ["Hello, World"]),
        ("c", 'kind,"title"\nx,a\ny,"b\nc"\n', ["a", "b c"]),
        ("c", '"kind\nof it",title\nx,a\n', ["a"]),
        ("c.csv", "title\r\na\r\n", ["a"]),
        # Lists of titles, with commas in them and with title among the first.
        ("c", "Hello, World\nTitle, The\na, b\n", ["Hello, World", "Title, The", "a, b"]),
        ("c", "Title, The\nHello\nWorld\n", ["Title, The", "Hello", "World"]),
        ("c", "id,name\n1,a\n", ["id,name", "1,a"]),
        ("c", '"Weird Al" Yankovic\nb\n', ['"Weird Al" Yankovic', "b"]),
        ("c", '"title\nb\n', ['"title', "b"]),
    ],
)
def test_the_content_and_the_suffix_tell_what_a_file_is(
    tmp_path: Path, name: str, text: str, titles: list[str]
) -> None:
    records, rejects = read_file(written(tmp_path, text, name))
    assert [record.title for record in records] == titles
    assert not rejects.rows


def test_one_wrong_row_in_the_beginning_does_not_hide_a_table(tmp_path: Path) -> None:
    file = written(tmp_path, "title,kind\na,b,c\na,b\nd,e\n", "catalogue")
    assert [line for line, _ in found(file)[1]] == [2]


def test_an_open_quote_does_not_hide_a_table(tmp_path: Path) -> None:
    file = written(tmp_path, 'id;title\n1;"A\n2;b\n', "catalogue")
    with pytest.raises(SourceError, match=r"line 2: .* a quote that is not closed"):
        found(file)


def test_the_delimiter_may_be_told(tmp_path: Path) -> None:
    text = "title:kind\na, b:c\n"
    told = ColumnMapping(delimiter=":")
    for source_format in ("auto", "csv"):
        records, _ = found(written(tmp_path, text, "c"), mapping=told, source_format=source_format)
        assert [(r.title, r.metadata) for r in records] == [("a, b", ("c",))]
    tab = ColumnMapping(delimiter="\t")
    records, _ = found(written(tmp_path, 'title\tkind\n"a"\tb\n'), mapping=tab)
    assert records[0].title == "a", "quoting, unlike TSV"
    assert BuildOptions(Path("x"), mapping=told).shaping()["columns"] == {"delimiter": ":"}


def test_a_file_of_another_encoding_says_how_to_convert_it(tmp_path: Path) -> None:
    """As Excel saves it on Windows: without a word about the encoding, or as "Unicode text"."""
    file = tmp_path / "c.csv"
    file.write_bytes("title,kind\nMünchen,city\n".encode("cp1252"))
    rejects = Rejects("c.csv", 0)
    with TitleSource(file) as source:
        list(source.batches(1000, rejects))
    with pytest.raises(
        SourceError, match=r"\nsave it as UTF-8 .* iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW$"
    ):
        rejects.check()
    file.write_bytes("title\tkind\nMünchen\tcity\n".encode("utf-16"))
    with pytest.raises(SourceError, match=r"this is UTF-16; .* iconv -f UTF-16 -t UTF-8 FILE > NEW$"):
        found(file)


def read_in_part(source: TitleSource, count: int) -> int:
    rejects = Rejects(source.name, 0)
    return sum(len(batch.records) for batch in itertools.islice(source.batches(1000, rejects), count))


def test_a_file_is_read_block_by_block(tmp_path: Path) -> None:
    file = written(tmp_path, "title,kind\n" + "".join(f'"title {i}",k\n' for i in range(100_000)))
    with TitleSource(file) as source:
        assert read_in_part(source, 3) == 3000
        assert source.bytes_read < 1 << 20 < file.stat().st_size
