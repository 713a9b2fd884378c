"""Lists the input files of a corpus with their formats, reads them from any place on, and notices changes.

Content is decompressed on the way; a line may be of any length. A UTF-8 byte order mark at the front of a
file is part of no document.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, InputFile, ShardFile
from genret.retrieval.normalize import find_surrogate
from genret.retrieval.sources.row_readers import inner_suffix, is_parquet
from genret.retrieval.sources.source_files import BOM, STDIN, ByteStream, FileState, is_read_once

# By the name, behind which .gz, .zst or .zstd may stand.
ENDINGS = {"jsonl": (".jsonl", ".ndjson"), "parquet": (".parquet", ".pq"), "text": (".txt", ".text")}
_HEAD_BYTES = 1 << 12


def list_files(options: CorpusOptions) -> list[InputFile]:
    """Return the files of a corpus: inputs in the order given, a folder's by their path inside it.

    Files and folders whose names begin with a dot are left out of a folder, as are files with other endings.
    Where two files would have the same name, those of folders are called folder/path. Inputs that cannot be
    used or come twice are an InputError; what is missing, unreadable or without a usable file a SourceError.
    """
    if not options.inputs:
        raise InputError("inputs", "expected at least one file or folder")
    files = [file for path in options.inputs for file in _files_at(path, options)]
    if len({file.source for file in files}) < len(files):
        files = [InputFile(file.path, file.path) for file in files]
    paths = Counter(os.path.abspath(file.path) for file in files)
    twice = next((file.path for file in files if paths[os.path.abspath(file.path)] > 1), None)
    if twice is not None:
        raise InputError("inputs", f"{twice} is named more than once")
    return files


def file_format(path: str, options: CorpusOptions) -> str:
    """Return the format of a file: as the options say, else by its name, else by how it begins.

    A SourceError says that it cannot be told, or that the file cannot be read.
    """
    if options.input_format != "auto":
        return options.input_format
    suffix = inner_suffix(path)
    for name, endings in ENDINGS.items():
        if suffix in endings:
            return name
    if suffix == ".json":
        return "jsonl"
    with closing(ByteStream(path, may_be_empty=True)) as stream:
        if is_parquet(stream):
            return "parquet"
        if stream.peek(_HEAD_BYTES).removeprefix(BOM).lstrip().startswith(b"{"):
            return "jsonl"
    raise SourceError(
        f"{path}: neither the name nor the content says how this file is to be read; expected a name that "
        f"ends in {_known('auto')}, or an input format (jsonl, parquet, text: the file is one document, or "
        "lines: each line is one)"
    )


def _files_at(path: str, options: CorpusOptions) -> list[InputFile]:
    """Return a file, or those of a folder under the names they have inside it."""
    if path == STDIN:
        raise InputError(
            "inputs",
            "standard input cannot be read again when a run goes on; write it to a file first and name that",
        )
    if find_surrogate(path) is not None:
        raise InputError("inputs", f"{path!r}: the name is not valid UTF-8; rename it")
    if is_read_once(path):
        raise InputError(
            "inputs", f"{path}: a pipe or device cannot be read again; write it to a file first and name that"
        )
    if os.path.isdir(path):
        names = sorted(_walk(path, _endings(options.input_format)))
        if not names:
            raise SourceError(
                f"{path}: the folder holds no file to read; expected names that end in "
                f"{_known(options.input_format)}, with or without .gz or .zst behind it"
            )
        return [InputFile(os.path.join(path, name), name) for name in names]
    if not os.path.exists(path):
        raise SourceError(f"{path}: no such file or folder")
    return [InputFile(path, path)]


def _walk(top: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Yield the usable files below a folder by their paths inside it, in no order.

    A folder that several links lead to is read once: under its own name if that is below `top`, else under
    the first of the links. So loops of links end, and no file comes twice that way.
    """
    seen: set[tuple[int, int]] = set()
    folders: list[str] = [""]
    links: list[str] = []
    while folders or links:
        if folders:
            inner = folders.pop()
        else:
            links.sort(reverse=True)
            inner = links.pop()
        here = os.path.join(top, inner) if inner else top
        try:
            status = os.stat(here)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(here) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            raise SourceError(f"{here}: cannot be read: {error.strerror}") from error
        for entry in visible:
            name = f"{inner}/{entry.name}" if inner else entry.name
            if _is_folder(entry):
                (links if entry.is_symlink() else folders).append(name)
            elif inner_suffix(entry.name) in endings:
                if find_surrogate(name) is not None:
                    raise SourceError(f"{here}: {name!r}: the name of the file is not valid UTF-8; rename it")
                yield name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself: no folder, and as a file it cannot be opened
        return False


def _endings(input_format: str) -> tuple[str, ...]:
    if input_format == "auto":
        return tuple(ending for endings in ENDINGS.values() for ending in endings)
    return ENDINGS["text" if input_format == "lines" else input_format]


def _known(input_format: str) -> str:
    *others, last = _endings(input_format)
    return f"{', '.join(others)} or {last}"


MAX_LINE_BYTES = 1 << 28  # a line is parsed as a whole, which takes several times its size
_BLOCK_BYTES = 1 << 18


class Line(NamedTuple):
    """One line with its end, of which `raw` holds at most `MAX_LINE_BYTES`, and its length in bytes."""

    raw: bytes
    num_bytes: int


class Content:
    """Reads a regular file forward from an offset; `position` is that of the next byte.

    Bytes and offsets are those behind the decompression. What cannot be read is a `SourceError`.
    """

    def __init__(
        self, path: str, offset: int = 0, *, digests: bool = False, any_content: bool = False
    ) -> None:
        self.stream = ByteStream(path, digests=digests, may_be_empty=True, any_content=any_content)
        self.position = offset
        self._file = io.BufferedReader(_Blocks(self.stream.blocks_from(offset)), _BLOCK_BYTES)

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer at the end."""
        block = self._file.read(size)
        self.position += len(block)
        return block

    def line(self) -> Line | None:
        """Return the next line; None at the end."""
        raw = self._file.readline(MAX_LINE_BYTES)
        if not raw:
            return None
        num_bytes, end = len(raw), raw
        while len(end) and num_bytes >= MAX_LINE_BYTES and not end.endswith(b"\n"):
            end = self._file.readline(_BLOCK_BYTES)
            num_bytes += len(end)
        self.position += num_bytes
        return Line(raw, num_bytes)

    def skip_to(self, offset: int) -> None:
        """Go forward to a place."""
        while self.position < offset and self.read(min(_BLOCK_BYTES, offset - self.position)):
            pass

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self.stream.close()


class _Blocks(io.RawIOBase):
    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def check_size(file: ShardFile) -> None:
    """Raise `SourceError` for a file that is gone or has another size."""
    state = FileState.of(file.path)
    if state is not None and file.num_bytes >= 0 and state.bytes != file.num_bytes:
        raise changed(file, f"it had {file.num_bytes} bytes and has {state.bytes}")


def changed(file: ShardFile, how: str) -> SourceError:
    """Return the error for a file that is not what it was."""
    return SourceError(
        f"{file.path}: the file has changed since the run was planned ({how}); put it back as it was, or "
        "begin the run anew with another output folder"
    )
