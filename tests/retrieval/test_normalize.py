from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.retrieval.normalize import (
    NormalizationReport,
    find_control,
    find_html_entity,
    is_normalized_block,
    normalize,
    resolve_html,
)
from genret.retrieval.sources import open_source
from tests.catalogue_files import read_batches

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


def report_of(folder: Path, data: str, **options: object) -> tuple[list[str], NormalizationReport, int]:
    file = folder / "c.tsv"
    file.write_bytes(data.encode())
    with open_source(file, **options) as source:  # type: ignore[arg-type]
        batches, rejects = read_batches(source, 2)
    report = sum((batch.normalization for batch in batches), NormalizationReport())
    return [record.title for batch in batches for record in batch.records], report, len(rejects.rows)


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
    titles, report, rejected = report_of(tmp_path, data)
    assert titles == ["é", "two words", "AT&amp;T", "plain", "\u0301é"]
    assert report == NormalizationReport(composed=2, respaced=2, html_entities=1)
    assert rejected == 1
    assert NormalizationReport.from_json(report.to_json()) == report


def test_html_entities_are_resolved_on_request(tmp_path: Path) -> None:
    data = "title\taliases\nAT&amp;T\t&lt;x&gt;\na&nbsp;b\t\nc&#7;d\t\n&amp;amp;\t\nR&B\t\n&#10;e\t\n"
    titles, report, rejected = report_of(tmp_path, data, unescape_html=True)
    assert titles == ["AT&T", "a b", "cd", "&amp;", "R&B", "e"]
    assert report == NormalizationReport(respaced=2, html_entities=1, unescaped=5)
    assert rejected == 0


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    titles=st.lists(st.text("ab é\u0301\u00a0\u200b&;mp", min_size=1, max_size=8), min_size=1, max_size=700),
    with_aliases=st.booleans(),
)
def test_the_quick_way_is_the_slow_way(tmp_path: Path, titles: list[str], with_aliases: bool) -> None:
    header = "title\taliases\tkind" if with_aliases else "title\tkind"
    middle = "\t" if with_aliases else ""
    data = "\n".join([header, *(f"{title}\t{middle}k" for title in titles)]) + "\n"
    found, report, rejected = report_of(tmp_path, data)
    good = [title for title in titles if normalize(title)]
    assert found == [normalize(title) for title in good]
    assert rejected == len(titles) - len(good)
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
