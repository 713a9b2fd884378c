"""However a corpus is cut: every document comes out once and whole, and no shard holds more than it may."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval.linking.documents.corpus import CorpusOptions, Shard, plan_corpus
from retrieval.linking.documents.corpus_reading import CorpusReader
from retrieval.linking.documents.text_document import Document
from retrieval.sources.source_files import digest_file
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
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=40,
)
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
