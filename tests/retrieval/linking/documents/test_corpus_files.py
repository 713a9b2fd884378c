"""Which files a corpus is made of, in which order, and what they are called."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, plan_corpus
from genret.retrieval.linking.documents.text_document import Document
from tests.corpus_shards import read_shard


def texts(
    *inputs: Path | str, input_format: str = "auto", shard_documents: int = 1000
) -> list[tuple[str, str]]:
    options = CorpusOptions(tuple(map(str, inputs)), input_format, shard_documents=shard_documents)
    found = []
    for shard in plan_corpus(options).shards:
        for document in read_shard(options, shard):
            assert isinstance(document, Document)
            found.append((document.source, document.text))
    return found


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_folder_is_read_by_the_paths_inside_it(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", "a/z.txt", "a.txt", "a/b/c.TXT", "ä.text", "B.txt")
    write(tmp_path, ".hidden.txt", ".git/a.txt", "a/.b/c.txt", "README", "notes.md", "dataset_infos.json")
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
    write(tmp_path, *(f"{number:03}.txt" for number in range(100)))
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
    write(tmp_path, "a.md", ".b.txt")
    with pytest.raises(SourceError) as error:
        texts(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: the folder holds no file to read; expected names that end in .jsonl, .ndjson, "
        ".parquet, .pq, .txt or .text, with or without .gz or .zst behind it"
    )


def test_links_are_followed_once(tmp_path: Path) -> None:
    corpus, outside = tmp_path / "corpus", tmp_path / "outside"
    write(corpus, "z/a.txt", "b.txt")
    write(outside, "o.txt", "deep/p.txt")
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
    write(tmp_path, "a.txt")
    (tmp_path / "broken.txt").symlink_to(target)
    with pytest.raises(SourceError, match=r"broken\.txt: "):
        texts(tmp_path)


def test_inputs_are_read_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, "x/b.txt", "a.txt", "y/c.txt")
    a = str(tmp_path / "a.txt")
    assert texts(tmp_path / "x", a, tmp_path / "y") == [
        ("b.txt", "x/b.txt"),
        (a, "a.txt"),
        ("c.txt", "y/c.txt"),
    ]


def test_folders_with_files_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, "x/b.txt", "y/b.txt")
    x, y = str(tmp_path / "x"), str(tmp_path / "y")
    assert texts(x, y) == [(f"{x}/b.txt", "x/b.txt"), (f"{y}/b.txt", "y/b.txt")]


def test_no_file_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "x/b.txt")
    monkeypatch.chdir(tmp_path)
    for inputs in (
        ("x/b.txt", "x/b.txt"),
        ("x", "x/b.txt"),
        ("x", "./x"),
        ("x/b.txt", str(tmp_path / "x/b.txt")),
    ):
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
    with pytest.raises(InputError, match=expected) as error:
        plan_corpus(CorpusOptions(inputs))
    assert error.value.field == "inputs"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.jsonl: no such file or folder"):
        texts(tmp_path / "a.jsonl")


def test_a_pipe_in_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(SourceError, match=r"a\.txt: a pipe or device cannot be read again"):
        texts(tmp_path)


def test_a_name_in_a_folder_that_is_no_utf8(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/a\xff.txt", "wb"):
        pass
    with pytest.raises(SourceError, match="the name of the file is not valid UTF-8; rename it"):
        texts(tmp_path)


def test_an_ending_says_nothing_in_a_folder_that_is_a_file(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl/b.txt")
    assert texts(tmp_path) == [("a.jsonl/b.txt", "a.jsonl/b.txt")]
