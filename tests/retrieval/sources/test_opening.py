"""Byte streams: compressed, damaged, read once, from an offset, and digested on the way."""

from __future__ import annotations

import gzip
import os
import threading
from contextlib import closing
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.sources import source_files
from genret.retrieval.sources.source_files import ByteStream, digest_file
from genret.retrieval.sources.title_source import TitleSource
from tests.catalogue_files import (
    COMPRESSIONS,
    Entity,
    compressed,
    lenient,
    read_all,
    read_file,
    write_catalogue,
)

ENTITIES: list[Entity] = [(f"q{i}", f"title {i * 7919 % 997} of {i}", (), (str(i),)) for i in range(3000)]


def written(folder: Path, name: str) -> Path:
    """Write ENTITIES as a file whose name tells format and compression."""
    stem, source_format, *compression = name.split(".")
    suffix = "".join(f".{one}" for one in compression)
    return write_catalogue(folder, f"{stem}.{source_format}", ENTITIES, ("n",), suffix)


def content(file: Path) -> bytes:
    with closing(ByteStream(file)) as stream:
        return b"".join(stream.blocks())


@lenient(max_examples=60)
@given(st.lists(st.text("aé\r ", max_size=9), min_size=1, max_size=30), st.integers(1, 20), st.integers(0, 9))
def test_lines_are_those_of_the_whole_file_whatever_the_blocks(
    tmp_path: Path, texts: list[str], size: int, skip: int
) -> None:
    lines = [f"{text}x".encode() for text in texts]
    file = tmp_path / "x"
    file.write_bytes(b"\n".join(lines))
    with mock.patch.object(source_files, "_BLOCK_BYTES", size), closing(ByteStream(file)) as stream:
        blocks = list(source_files.line_blocks(stream, skip))
    found = [(first + n, line) for first, block in blocks for n, line in enumerate(block.split(b"\n"))]
    assert found == list(enumerate(lines, start=1))[skip:]


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_several_streams_in_one_file(tmp_path: Path, compression: str) -> None:
    file = tmp_path / "x"
    file.write_bytes(compressed(b"one\n", compression) + compressed(b"two\n" * 100_000, compression))
    assert content(file) == b"one\n" + b"two\n" * 100_000


def test_zeros_behind_gzip_are_padding(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(gzip.compress(b"one\n") + bytes(1000))
    assert content(file) == b"one\n"


def test_a_small_file_of_much_content_comes_in_small_blocks(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(gzip.compress(bytes(50_000_000)))
    with closing(ByteStream(file)) as stream:
        assert max(map(len, stream.blocks())) <= 1 << 18


@pytest.mark.parametrize("name", ["c.tsv.gz", "c.tsv.zst", "c.parquet", "c.parquet.gz"])
@lenient(max_examples=25)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_cut_off_file_is_an_error_that_names_it(tmp_path: Path, name: str, cut: float) -> None:
    file = written(tmp_path, name)
    data = file.read_bytes()
    # The rest of a compressed file has to be long enough to be recognised as one.
    least = 0 if name.endswith("parquet") else 4
    file.write_bytes(data[: max(least, int(len(data) * cut))])
    with pytest.raises(SourceError) as caught, TitleSource(file) as source:
        read_all(source, 1000, 0)
    assert str(file) in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("name", ["c.tsv.gz", "c.tsv.zst", "c.parquet"])
@lenient(max_examples=40)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_an_error_or_bad_rows_never_a_crash(
    tmp_path: Path, name: str, place: float, bit: int
) -> None:
    file = written(tmp_path, name)
    data = bytearray(file.read_bytes())
    data[int(len(data) * place)] ^= 1 << bit
    file.write_bytes(bytes(data))
    message = str(file)
    try:
        with TitleSource(file) as source:
            read_all(source, 1000, 5000)
    except SourceError as error:
        message = str(error)
    assert str(file) in message


def test_the_error_says_where_the_stream_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "c.tsv.gz"
    data = gzip.compress(b"title\n" + b"".join(os.urandom(6).hex().encode() + b"\n" for _ in range(50_000)))
    file.write_bytes(data[:-20_000])
    where = rf"cut off near byte {len(data) - 20_000} of the file, after \d+ bytes"
    with TitleSource(file) as source, pytest.raises(SourceError, match=where):
        read_all(source)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04", "zip archive, as an Excel workbook is .save it as CSV UTF-8.; expected"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"ARROW1\x00\x00", "Arrow IPC"),
        ("title\nA".encode("utf-16"), "UTF-16"),
        (b"SQLite format 3\0", "SQLite database; .* as sqlite:////.*c with --sql$"),
        (gzip.compress(gzip.compress(b"title\nA\n")), "a gzip file inside gzip"),
        (gzip.compress(b""), "the file is empty"),
        (bytes(pa.compress(b"PK\x03\x04", codec="zstd", asbytes=True)), "zip archive.* inside Zstandard"),
    ],
    # Named, as gzip writes the time into its header and names made of it differ between test processes.
    ids=["zip", "bzip2", "xz", "Arrow", "UTF-16", "SQLite", "gzip in gzip", "empty gzip", "zip in zstd"],
)
def test_other_formats_are_refused_by_name(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "c"
    file.write_bytes(data)
    with pytest.raises(SourceError, match=message) as caught:
        TitleSource(file)
    assert str(file) in str(caught.value)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = gzip.compress(b"title\n" + b"some title\n" * 100_000)
    thread = threading.Thread(target=pipe.write_bytes, args=(data,))
    thread.start()
    with TitleSource(pipe) as source:
        assert source.num_bytes is None
        assert len(read_all(source, 10_000)[0]) == 100_000
        entry = source.entries()[0]
    thread.join()
    (tmp_path / "file").write_bytes(data)
    same = digest_file(tmp_path / "file")
    assert (entry.bytes, entry.xxh3_128) == (same.bytes, same.xxh3_128)


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "c.txt"
    file.write_bytes(b"A\n")
    with TitleSource(file) as source:
        read_all(source)
        assert source.entries()[0].bytes == 2
        file.write_bytes(b"A\nB\n")
        with pytest.raises(SourceError, match="changed while it was read"):
            source.entries()


def test_digests_of_regular_files_only(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="read only once"):
        digest_file("-")
    with pytest.raises(SourceError, match="no such file"):
        digest_file(tmp_path / "absent")


def test_names_that_cannot_be_are_errors_about_the_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="b: cannot be read: File name too long"):
        TitleSource(tmp_path / ("b" * 300))
    with pytest.raises(InputError, match="the name of the file is not valid UTF-8"):
        TitleSource(os.fsdecode(bytes(tmp_path) + b"/\xff.txt"))


def test_a_byte_order_mark_in_two_pieces_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "c.txt.gz"
    file.write_bytes(gzip.compress(b"\xef") + gzip.compress(b"\xbb\xbfa\n"))
    records, _ = read_file(file)
    assert [record.title for record in records] == ["a"]


DATA = bytes(range(1, 256)) * 4000  # four blocks


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("offset", [0, 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, len(DATA) - 1, len(DATA)])
def test_from_an_offset(tmp_path: Path, compression: str, offset: int) -> None:
    file = tmp_path / "x"
    file.write_bytes(compressed(DATA, compression))
    for peeked in (0, 10, 1 << 19):
        with closing(ByteStream(file)) as stream:
            assert stream.peek(peeked)[:peeked] == DATA[: len(stream.peek(peeked))][:peeked]
            blocks = list(stream.blocks_from(offset))
        assert b"".join(blocks) == DATA[offset:]
        assert all(blocks)


def test_what_lies_before_the_offset_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(bytes([1]) * 10_000_000)
    with closing(ByteStream(file)) as stream:
        assert sum(map(len, stream.blocks_from(9_999_000))) == 1000
        assert stream.raw.bytes_read <= (1 << 18) + 1000


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_content(tmp_path: Path, compression: str) -> None:
    file = tmp_path / "x"
    file.write_bytes(compressed(b"", compression) if compression else b"")
    with closing(ByteStream(file, may_be_empty=True)) as stream:
        assert stream.peek(4) == b""
        assert list(stream.blocks()) == []
    with closing(ByteStream(file)) as stream, pytest.raises(SourceError, match="the file is empty"):
        stream.peek(4)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("content", [b"PK\x03\x04 text", b"\xff\xfea\0", b"%PDF-1.7"])
def test_any_content(tmp_path: Path, compression: str, content: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(compressed(content, compression))
    with closing(ByteStream(file, any_content=True)) as stream:
        assert b"".join(stream.blocks()) == content
    with closing(ByteStream(file)) as stream, pytest.raises(SourceError, match="this is "):
        stream.peek(4)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_digest_is_of_the_bytes_on_disk(tmp_path: Path, compression: str) -> None:
    file = tmp_path / "x"
    file.write_bytes(compressed(DATA, compression))
    with closing(ByteStream(file, digests=True)) as stream:
        assert b"".join(stream.blocks()) == DATA
        assert stream.is_compressed == bool(compression)
        assert stream.raw.hexdigest == xxhash.xxh3_128_hexdigest(file.read_bytes())
    with closing(ByteStream(file)) as stream:
        stream.peek(4)
        assert stream.raw.hexdigest == ""
