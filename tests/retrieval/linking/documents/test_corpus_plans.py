"""Files of a corpus and its shards: every document comes out once, however the corpus is cut."""

from __future__ import annotations

import gzip
import json
import os
import shutil
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

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, Shard
from genret.retrieval.linking.documents.corpus_reading import CorpusReader, plan_corpus
from genret.retrieval.linking.documents.text_document import Document
from genret.retrieval.sources.source_files import digest_file
from tests.corpus_shards import read_corpus, read_shard, store


def texts(
    *inputs: Path | str, input_format: str = "auto", shard_documents: int = 1000
) -> list[tuple[str, str]]:
    options = CorpusOptions(tuple(map(str, inputs)), input_format, shard_documents=shard_documents)
    return [(document.source, document.text) for document in read_corpus(options)[1]]  # type: ignore[union-attr]


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_folder_is_read_by_the_paths_inside_it(tmp_path: Path) -> None:
    write_files(tmp_path, "b.txt", "a/z.txt", "a.txt", "a/b/c.TXT", "ä.text", "B.txt")
    write_files(
        tmp_path, ".hidden.txt", ".git/a.txt", "a/.b/c.txt", "README", "notes.md", "dataset_infos.json"
    )
    (tmp_path / "c.jsonl").write_text('{"text": "c1"}\n{"text": "c2"}\n')
    (tmp_path / "d.ndjson.gz").write_bytes(gzip.compress(b'{"text": "d"}'))
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(b"e"))
    pq.write_table(pa.table({"text": ["f"]}), tmp_path / "f.pq")
    expected = [
        *((name, name) for name in ("B.txt", "a.txt", "a/b/c.TXT", "a/z.txt", "b.txt")),
        ("c.jsonl", "c1"),
        ("c.jsonl", "c2"),
        ("d.ndjson.gz", "d"),
        ("e.txt.gz", "e"),
        ("f.pq", "f"),
        ("ä.text", "ä.text"),
    ]
    for shard_documents in (1, 4, 1000):
        assert texts(tmp_path, shard_documents=shard_documents) == expected
    assert texts(f"{tmp_path}/") == expected


def test_small_files_share_a_shard(tmp_path: Path) -> None:
    write_files(tmp_path, *(f"{number:03}.txt" for number in range(100)))
    plan = plan_corpus(CorpusOptions((str(tmp_path),), shard_documents=30))
    assert [shard.num_documents for shard in plan.shards] == [30, 30, 30, 10]
    assert plan.num_documents == 100
    plan = plan_corpus(CorpusOptions((str(tmp_path),), shard_chars=70))
    assert [shard.num_documents for shard in plan.shards] == [10] * 10


def test_one_format_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / "b.jsonl").write_text('{"text": "b"}')
    assert texts(tmp_path, input_format="lines") == [("a.txt", "one"), ("a.txt", "two")]
    assert texts(tmp_path, input_format="text") == [("a.txt", "one\ntwo")]
    assert texts(tmp_path, input_format="jsonl") == [("b.jsonl", "b")]
    with pytest.raises(
        SourceError, match=r"holds no file to read; expected names that end in \.parquet or \.pq"
    ):
        texts(tmp_path, input_format="parquet")


def test_a_file_is_read_in_the_format_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text('{"text": "a"}\n')
    name = str(tmp_path / "a.log")
    assert texts(name, input_format="lines") == [(name, '{"text": "a"}')]
    assert texts(name, input_format="text") == [(name, '{"text": "a"}\n')]
    assert texts(name, input_format="jsonl") == texts(name) == [(name, "a")]


def test_a_folder_without_a_file_to_read(tmp_path: Path) -> None:
    write_files(tmp_path, "a.md", ".b.txt")
    with pytest.raises(SourceError) as error:
        texts(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: the folder holds no file to read; expected names that end in .jsonl, .ndjson, "
        ".parquet, .pq, .txt or .text, with or without .gz or .zst behind it"
    )
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(b"\n \n")
    with pytest.raises(SourceError, match="no document in 2 files"):
        texts(tmp_path)


def test_links_are_followed_once(tmp_path: Path) -> None:
    corpus, outside = tmp_path / "corpus", tmp_path / "outside"
    write_files(corpus, "z/a.txt", "b.txt")
    write_files(outside, "o.txt", "deep/p.txt")
    (corpus / "z" / "loop").symlink_to(corpus)
    (corpus / "a").symlink_to(corpus / "z")
    (corpus / "self").symlink_to("self")
    (corpus / "m").symlink_to(outside)
    (corpus / "l").symlink_to(outside)
    (outside / "back").symlink_to(corpus)
    (corpus / "c.txt").symlink_to(tmp_path / "elsewhere.txt")
    (tmp_path / "elsewhere.txt").write_text("c")
    assert texts(corpus) == [
        ("b.txt", "b.txt"),
        ("c.txt", "c"),
        ("l/deep/p.txt", "deep/p.txt"),
        ("l/o.txt", "o.txt"),
        ("z/a.txt", "z/a.txt"),
    ]


@pytest.mark.parametrize("target", ["nowhere", "broken.txt"])
def test_a_broken_link_is_not_passed_over(tmp_path: Path, target: str) -> None:
    write_files(tmp_path, "a.txt")
    (tmp_path / "broken.txt").symlink_to(target)
    with pytest.raises(SourceError, match=r"broken\.txt: "):
        texts(tmp_path)


def test_inputs_are_read_in_their_order_and_files_of_the_same_name_told_apart(tmp_path: Path) -> None:
    write_files(tmp_path, "x/b.txt", "a.txt", "y/b.txt", "y/c.txt")
    a, x, y = (str(tmp_path / name) for name in ("a.txt", "x", "y"))
    assert texts(x, a) == [("b.txt", "x/b.txt"), (a, "a.txt")]
    assert texts(x, a, y) == [
        (f"{x}/b.txt", "x/b.txt"),
        (a, "a.txt"),
        (f"{y}/b.txt", "y/b.txt"),
        (f"{y}/c.txt", "y/c.txt"),
    ]
    write_files(tmp_path / "z", "a.jsonl/b.txt")  # the ending of a folder says nothing
    assert texts(tmp_path / "z") == [("a.jsonl/b.txt", "a.jsonl/b.txt")]


def test_no_file_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, "x/b.txt")
    monkeypatch.chdir(tmp_path)
    absolute = str(tmp_path / "x/b.txt")
    for inputs in (("x/b.txt", "x/b.txt"), ("x", "x/b.txt"), ("x", "./x"), ("x/b.txt", absolute)):
        with pytest.raises(InputError, match=r"inputs: .*b\.txt is named more than once"):
            texts(*inputs)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ((), "expected at least one file or folder"),
        (("-",), "standard input cannot be read again when a run goes on; write it to a file first"),
        (("/dev/null",), "/dev/null: a pipe or device cannot be read again; write it to a file first"),
        (("a\udcff.txt",), r"the name is not valid UTF-8; rename it"),
    ],
    ids=["none", "stdin", "device", "name"],
)
def test_inputs_that_are_refused(inputs: tuple[str, ...], expected: str) -> None:
    with pytest.raises(InputError, match=f"^inputs: .*{expected}"):
        plan_corpus(CorpusOptions(inputs))


def test_files_that_cannot_be_read_again(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.jsonl: no such file or folder"):
        texts(tmp_path / "a.jsonl")
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(SourceError, match=r"a\.txt: a pipe or device cannot be read again"):
        texts(tmp_path)


def test_a_name_in_a_folder_that_is_no_utf8(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/a\xff.txt", "wb"):
        pass
    with pytest.raises(SourceError, match="the name of the file is not valid UTF-8; rename it"):
        texts(tmp_path)


# Marks, line ends and characters of every length in UTF-8.
TEXTS = st.lists(st.text(st.sampled_from("ab \n\u0301中\U0001f469"), max_size=30), min_size=1, max_size=12)
OPTIONS = st.builds(
    lambda documents, chars: CorpusOptions((), shard_documents=documents, shard_chars=chars),
    st.integers(1, 5),
    st.integers(2, 40),
)


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


@pytest.mark.parametrize("form", ["lines", "gzip", "parquet", "texts", "folder"])
@given(texts=TEXTS, options=OPTIONS, order=st.randoms(use_true_random=False))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_corpus_in_any_shards(
    tmp_path: Path, form: str, texts: list[str], options: CorpusOptions, order: Random
) -> None:
    shutil.rmtree(tmp_path / "d", ignore_errors=True)  # of the example before
    options = replace(options, inputs=(str(store(tmp_path, form, texts)),))
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
        options = CorpusOptions((str(store(tmp_path, form, texts)),), shard_documents=10)
        shards = plan_corpus(options).shards
        with closing(CorpusReader(options)) as reader:
            for shard in (shards[0], shards[0], shards[3], shards[1]):
                first = next(reader.read(shard))
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


NAMES_OF_PARTS = ("part", "bad part", "part of a line")


def swap(content: bytes) -> bytes:
    return content.replace(b"line 15", b"line 51")


def read(options: CorpusOptions, shard: Shard) -> int:
    return len(list(read_shard(options, shard)))


@pytest.mark.parametrize(
    ("name", "content", "other", "shard_chars"),
    [
        ("c.jsonl", LINES, swap, 10**6),
        ("c.jsonl", LINES, lambda content: content + b"{}\n", 10**6),
        ("c.jsonl", LINES, lambda content: content[:-20], 10**6),
        ("c.jsonl", LINES, lambda content: content[:-9] + content[-8:] + b" ", 10**6),
        ("c.txt", LINES, swap, 10**6),
        ("c.txt", LINES, lambda content: content[:-1] + b"\xff", 10**6),
        ("c.txt", LINES, lambda content: content + b"more", 10**6),
        ("c.txt", LINES, swap, 100),
        ("c.txt", LINES, lambda content: content.replace(b"line 15", b"line \xff\xff"), 100),
        ("c.jsonl", json.dumps({"text": LINES.decode()}).encode(), swap, 100),
    ],
    ids=[*("line", "line more", "line less", "moved", "text", "bad text", "more text"), *NAMES_OF_PARTS],
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


def stored(text: str) -> bytes:
    lines = json.dumps({"text": text}) + "\n"
    return gzip.compress(lines.encode() * 20, compresslevel=0, mtime=0)


def a_table(text: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": [text]}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "pack", "problem"),
    [
        ("c.jsonl.gz", stored, "the file has changed .*lines 1 to 20 are others"),
        ("c.parquet", a_table, "the file has changed .*its footer is another"),
    ],
)
def test_changed_content_of_the_same_size(
    tmp_path: Path, name: str, pack: Callable[[str], bytes], problem: str
) -> None:
    (tmp_path / name).write_bytes(pack("a"))
    options = CorpusOptions((str(tmp_path / name),))
    (shard,) = plan_corpus(options).shards
    (tmp_path / name).write_bytes(pack("b"))
    assert (tmp_path / name).stat().st_size == shard.files[0].num_bytes
    with pytest.raises(SourceError, match=problem):
        read(options, shard)
    (tmp_path / name).unlink()
    with pytest.raises(SourceError, match=rf"{name}: no such file"):
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
