"""However a corpus is cut: every document comes out once and whole, and no shard holds more than it may."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.retrieval.errors import SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, Shard, plan_corpus
from genret.retrieval.linking.documents.corpus_reading import CorpusReader
from genret.retrieval.linking.documents.text_document import Document
from genret.retrieval.sources.source_files import digest_file
from tests.corpus_shards import read_shard

# Marks, line ends and characters of every length in UTF-8.
TEXTS = st.lists(st.text(st.sampled_from("ab \n\u0301中\U0001f469"), max_size=30), min_size=1, max_size=12)
OPTIONS = st.builds(
    lambda documents, chars: CorpusOptions((), shard_documents=documents, shard_chars=chars),
    st.integers(1, 5),
    st.integers(2, 40),
)


def write(folder: Path, form: str, texts: list[str]) -> Path:
    for file in folder.iterdir():
        file.unlink()
    if form == "files":
        for number, text in enumerate(texts):
            (folder / f"{number:03}.txt").write_bytes(text.encode())
        return folder
    if form == "parquet":
        pq.write_table(pa.table({"text": texts}), folder / "c.parquet", row_group_size=3)
        return folder / "c.parquet"
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    file = folder / "c.jsonl"
    file.write_bytes(gzip.compress(content) if form == "gzip" else content)
    return file


def whole(documents: list[Document]) -> list[str]:
    """Put the parts of documents together again."""
    texts: list[str] = []
    for document in documents:
        if document.offset + document.begin == 0:
            texts.append("")
        assert len(texts[-1]) == document.offset + document.begin
        texts[-1] += document.text[document.begin : document.end]
    return texts


def check_bounds(shards: tuple[Shard, ...], read: list[list[Document]], options: CorpusOptions) -> None:
    for shard, documents in zip(shards, read, strict=True):
        assert shard.num_documents == len(documents) <= options.shard_documents
        assert documents
        length = sum(document.end - document.begin for document in documents)
        assert length <= options.shard_chars


@pytest.mark.parametrize("form", ["lines", "gzip", "parquet", "files"])
@given(texts=TEXTS, options=OPTIONS, order=st.randoms(use_true_random=False))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_corpus_in_any_shards(
    tmp_path: Path, form: str, texts: list[str], options: CorpusOptions, order: Random
) -> None:
    options = replace(options, inputs=(str(write(tmp_path, form, texts)),))
    plan = plan_corpus(options)
    assert plan == plan_corpus(options)
    assert plan.num_documents == len(texts)
    assert len({shard.digest for shard in plan.shards}) == len(plan.shards)
    read = [[d for d in read_shard(options, shard) if isinstance(d, Document)] for shard in plan.shards]
    check_bounds(plan.shards, read, options)
    assert whole([document for documents in read for document in documents]) == texts
    shuffled = list(plan.shards)
    order.shuffle(shuffled)
    with closing(CorpusReader(options)) as reader:
        for shard in shuffled:
            assert list(reader.read(shard)) == read[shard.number]


def test_a_reader_goes_on_after_a_shard_that_was_not_read_to_its_end(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(50)]
    for form in ("lines", "gzip", "parquet"):
        options = CorpusOptions((str(write(tmp_path, form, texts)),), shard_documents=10)
        shards = plan_corpus(options).shards
        with closing(CorpusReader(options)) as reader:
            for shard in (shards[0], shards[0], shards[3], shards[1]):
                first = next(reader.read(shard))
                assert isinstance(first, Document)
                assert first.text == f"text {shard.number * 10}"
                assert first.row == shard.number * 10 + 1


def test_digests_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000) + bytes(600_000))
    (tmp_path / "b.txt").write_bytes(b"b" * 1_000_000 + b"\xff" + b"b" * 1_000_000)
    (tmp_path / "c.txt").write_bytes(b"")
    pq.write_table(pa.table({"text": ["c"]}), tmp_path / "d.parquet")
    plan = plan_corpus(CorpusOptions((str(tmp_path),)))
    assert plan.digests == {file.name: digest_file(file).xxh3_128 for file in tmp_path.iterdir()}


LINES = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(10, 30)).encode()


def swap(content: bytes) -> bytes:
    return content.replace(b"line 15", b"line 51")


def read(options: CorpusOptions, shard: Shard) -> int:
    return len(list(read_shard(options, shard)))


@pytest.mark.parametrize(
    ("name", "content", "other", "shard_chars"),
    [
        pytest.param("c.jsonl", LINES, swap, 10**6, id="a line"),
        pytest.param("c.jsonl", LINES, lambda content: content + b"{}\n", 10**6, id="a line more"),
        pytest.param("c.jsonl", LINES, lambda content: content[:-20], 10**6, id="a line less"),
        pytest.param("c.jsonl", LINES, lambda content: content[:-9] + content[-8:] + b" ", 10**6, id="moved"),
        pytest.param("c.txt", LINES, swap, 10**6, id="text"),
        pytest.param("c.txt", LINES, lambda content: content[:-1] + b"\xff", 10**6, id="bad text"),
        pytest.param("c.txt", LINES, lambda content: content + b"more", 10**6, id="more text"),
        pytest.param("c.txt", LINES, swap, 100, id="a part"),
        pytest.param(
            "c.txt",
            LINES,
            lambda content: content.replace(b"line 15", b"line \xff\xff"),
            100,
            id="a bad part",
        ),
        pytest.param(
            "c.jsonl", json.dumps({"text": LINES.decode()}).encode(), swap, 100, id="a part of a line"
        ),
    ],
)
def test_changed_content(
    tmp_path: Path, name: str, content: bytes, other: Callable[[bytes], bytes], shard_chars: int
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    options = CorpusOptions((str(file),), shard_chars=shard_chars)
    shards = plan_corpus(options).shards
    file.write_bytes(other(content))
    messages = []
    for shard in shards:
        try:
            read(options, shard)
        except SourceError as error:
            messages.append(str(error))
    assert messages
    for message in messages:
        assert message.startswith(f"{file}: the file has changed since the run was planned (")
        assert message.endswith("put it back as it was, or begin the run anew with another output folder")
    file.write_bytes(content)
    assert sum(read(options, shard) for shard in shards) == sum(shard.num_documents for shard in shards)


def test_compressed_lines(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl.gz"
    file.write_bytes(gzip.compress(LINES, compresslevel=0, mtime=0))
    options = CorpusOptions((str(file),))
    (shard,) = plan_corpus(options).shards
    file.write_bytes(gzip.compress(swap(LINES), compresslevel=0, mtime=0))
    assert file.stat().st_size == shard.files[0].num_bytes
    with pytest.raises(SourceError, match=r"the file has changed .*lines 1 to 20 are others"):
        read(options, shard)


def test_tables(tmp_path: Path) -> None:
    file = tmp_path / "c.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), file)
    options = CorpusOptions((str(file),))
    (shard,) = plan_corpus(options).shards
    pq.write_table(pa.table({"text": ["a", "c"]}), file)
    assert file.stat().st_size == shard.files[0].num_bytes
    with pytest.raises(SourceError, match=r"the file has changed .*its footer is another"):
        read(options, shard)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(LINES)
    options = CorpusOptions((str(file),))
    (shard,) = plan_corpus(options).shards
    file.unlink()
    with pytest.raises(SourceError, match=r"c\.jsonl: no such file"):
        read(options, shard)


def test_time_and_place_of_a_file_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a" / "c.jsonl"
    file.parent.mkdir()
    file.write_bytes(LINES)
    monkeypatch.chdir(file.parent)
    options = CorpusOptions((".",))
    (shard,) = plan_corpus(options).shards
    os.utime(file, (1, 1))
    assert read(options, shard) == 20
    file.parent.rename(tmp_path / "b")
    moved = CorpusOptions((str(tmp_path / "b"),))
    (again,) = plan_corpus(moved).shards
    assert again.digest == shard.digest
    assert read(moved, replace(shard, files=again.files)) == 20


def test_a_file_that_is_written_to_while_it_is_planned(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(LINES * 20_000)

    def grow(num_bytes: int) -> None:
        with file.open("ab") as stream:
            stream.write(b"{}\n")

    with pytest.raises(SourceError, match=r"c\.jsonl: the file changed while it was read"):
        plan_corpus(CorpusOptions((str(file),)), grow)
