"""Byte streams read from the middle on, empty, of any content, and digested on the way."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import xxhash

from retrieval.errors import SourceError
from retrieval.sources.source_files import ByteStream
from tests.catalogue_files import COMPRESSIONS, compressed

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
        for _ in stream.blocks():
            pass
        assert stream.raw.hexdigest == xxhash.xxh3_128_hexdigest(file.read_bytes())
    with closing(ByteStream(file)) as stream:
        stream.peek(4)
        assert stream.raw.hexdigest == ""
