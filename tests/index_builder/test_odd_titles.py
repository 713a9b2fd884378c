"""Odd and real titles: each comes back exactly as it was, normalised, or is refused with the reason."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from genret.index_builder.build import BuildSummary, build_index
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from genret.retrieval.sources.records import RejectReason
from genret.retrieval.text import Rendering, TextTokenizer
from tests.corpus_shards import write_records
from tests.shared_titles import END_TOKENS, load_tokenizer, odd_titles, shared_file

pytestmark = pytest.mark.shared_data

MAX_TITLE_TOKENS = 256
TYPED = ("csv", "jsonl", "parquet")  # any string can stand in them; tabs and line ends in it are white space
LOSSY = ("titles_unigram32k", "titles_wordpiece16k_uncased")  # the others have all 256 bytes
SPECIAL = ("<|endoftext|>", "</s>", "<s>", "<unk>", "[UNK]", "[CLS]")


def test_every_tokenizer_there_is_tried() -> None:
    files = shared_file("tokenizers").glob("*.tokenizer.json")
    assert {file.name.removesuffix(".tokenizer.json") for file in files} == set(END_TOKENS)


def one_line(text: str) -> str:
    """A line break cannot stand in a line; one carriage return at the end belongs to the line's end."""
    return text.replace("\n", " ").removesuffix("\r")


def write_lines(file: Path, titles: list[str]) -> None:
    file.write_bytes("".join(one_line(title) + "\n" for title in titles).encode())


def write_tsv(file: Path, titles: list[str]) -> None:
    write_records(file, [{**row, "title": one_line(row["title"])} for row in rows_of(titles)])


def rows_of(titles: list[str]) -> list[dict[str, str]]:
    return [{"entity_id": f"T{n}", "title": title} for n, title in enumerate(titles)]


def write_rows(file: Path, titles: list[str]) -> None:
    write_records(file, rows_of(titles))


WRITERS: dict[str, Callable[[Path, list[str]], None]] = {
    "lines": write_lines,
    "tsv": write_tsv,
    **dict.fromkeys(TYPED, write_rows),
}


def clean(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def fault_of_field(text: str, source_format: str) -> RejectReason | None:
    """What the policy of the source says, before any tokenizer sees the title."""
    space = "\t\n\r" if source_format in TYPED else "\t"
    text = text if source_format in TYPED else one_line(text)
    if any(unicodedata.category(character) == "Cc" and character not in space for character in text):
        return RejectReason.CONTROL_CHARACTER
    if "\t" in text and (source_format == "tsv" or (source_format == "lines" and not text.isspace())):
        return RejectReason.TOO_MANY_FIELDS
    return None if clean(text) else RejectReason.NO_TITLE


def fault_of_title(title: str, tokenizer: TextTokenizer, rendering: Rendering) -> RejectReason | None:
    ids = tokenizer.encode_text(title)
    if not ids:
        return RejectReason.NO_TOKENS
    if len(ids) >= MAX_TITLE_TOKENS:
        return RejectReason.OVER_LONG
    if tokenizer.unknown_id in ids:
        return RejectReason.UNKNOWN_TOKEN
    return RejectReason.END_TOKEN_INSIDE if tokenizer.end_token_id(rendering) in ids else None


def build(
    folder: Path, titles: list[str], source_format: str, name: str
) -> tuple[BuildSummary, TextTokenizer]:
    source = folder / f"odd.{source_format}"
    WRITERS[source_format](source, titles)
    options = BuildOptions(
        out=folder / "odd.index",
        format=source_format,
        rendering=Rendering(end_token=END_TOKENS[name]),
        max_bad_rows=len(titles),
        max_title_tokens=MAX_TITLE_TOKENS,
        rejects=folder / "rejects.tsv",
    )
    return build_index(source, load_tokenizer(name), options)


def read_rejects(file: Path, first_lines: Sequence[int]) -> dict[int, str]:
    """Return the reason of every refused title, by its number; `first_lines` is where each begins."""
    numbers = {line: number for number, line in enumerate(first_lines)}
    rows = [row.split("\t") for row in file.read_text(encoding="utf-8").splitlines()]
    line, reason = rows[0].index("line"), rows[0].index("reason")
    refused = {numbers[int(row[line])]: row[reason] for row in rows[1:]}
    assert len(refused) == len(rows) - 1, "a title was refused twice"
    return refused


# What a format does to a title is done before a tokenizer sees it: all formats with two tokenizers, one of
# them lossy, and the others with one format each.
_TRIED = {(name, source_format) for name in ("gpt2", LOSSY[0]) for source_format in WRITERS}
_TRIED |= set(zip(END_TOKENS, itertools.cycle(WRITERS)))


@pytest.mark.parametrize(("name", "source_format"), sorted(_TRIED))
def test_odd_titles_come_back_or_are_refused_by_name(tmp_path: Path, name: str, source_format: str) -> None:
    titles = odd_titles()
    assert len(titles) > 800
    has_ids = source_format != "lines"
    summary = build(tmp_path, titles, source_format, name)
    tokenizer, rendering = load_tokenizer(name), Rendering(end_token=END_TOKENS[name])

    expected: dict[int, str] = {}
    kept: dict[str, str] = {}  # id -> title
    repeated = 0
    for n, text in enumerate(titles):
        title = clean(text)
        fault = fault_of_field(text, source_format) or fault_of_title(title, tokenizer, rendering)
        if fault is not None:
            expected[n] = fault
        elif not has_ids and title in kept:
            repeated += 1
        else:
            kept[f"T{n}" if has_ids else title] = title
    ends = [title.count("\n") + 1 if source_format == "csv" else 1 for title in titles]
    first_lines = accumulate(ends, initial=2 if source_format in ("csv", "tsv") else 1)
    refused = read_rejects(tmp_path / "rejects.tsv", list(first_lines))
    assert refused == expected
    assert (RejectReason.UNKNOWN_TOKEN in refused.values()) == (name in LOSSY)

    report = verify(summary.index)
    assert report.ok, report.problems
    with Index.open(summary.index) as index:
        (step,) = index.manifest.history
        assert (step.records, step.rejected, step.duplicates) == (len(titles), len(expected), repeated)
        assert index.num_entities == step.added == len(kept)
        assert len(kept) + len(expected) + repeated == len(titles)
        numbers = index.entities.numbers(list(kept))
        rows = tokenizer.encode_titles(list(kept.values()), rendering)
        for (entity_id, title), number, row in zip(kept.items(), numbers.tolist(), rows, strict=True):
            entity = index.entity(number)
            assert (entity.entity_id, entity.title) == (entity_id, title)
            assert row is not None
            rank = index.row_of(row)
            assert index.row_token_ids(rank) == tuple(row)
            assert number in index.entities_of(rank)
            assert index.surface(rank, number) == title


@pytest.mark.parametrize("name", END_TOKENS)
def test_text_that_looks_like_a_special_token_is_text(name: str) -> None:
    tokenizer = load_tokenizer(name)
    end = tokenizer.end_token_id(Rendering(end_token=END_TOKENS[name]))
    special = {tokenizer.token_id(text) for text in SPECIAL} - {None, tokenizer.unknown_id}
    for text in SPECIAL:
        ids = tokenizer.encode_text(text)
        assert end not in ids
        assert not special & set(ids)
