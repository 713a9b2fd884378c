"""Which entities an update takes away: ids from files and from the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from retrieval.errors import SourceError
from retrieval.index.digests import digest_bytes
from retrieval.index.manifest import FileEntry
from retrieval.normalize import normalize
from retrieval.rejects import Reason, Rejects
from retrieval.sources import digest_files
from retrieval.sources.opening import ByteStream
from retrieval.sources.text_lines import line_blocks


@dataclass(frozen=True, slots=True)
class Removals:
    """Ids, as they were given; one may stand there twice. 12 bytes per id and its text.

    Attributes:
        entity_ids: Shape: (n,), string.
        files: Number of the file of each among the bad rows' files. Shape: (n,).
        lines: Its line there, from 1. Shape: (n,).
        sources: The files; ids from the command line are a further one, called `--remove-id`.
    """

    entity_ids: pa.ChunkedArray
    files: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int64]
    sources: tuple[FileEntry, ...]

    def __len__(self) -> int:
        return len(self.entity_ids)

    def place(self, number: int, rejects: Rejects) -> str:
        """Return where one of them was given."""
        return f"{rejects.files[int(self.files[number])]}, line {int(self.lines[number])}"


COMMAND_LINE = "--remove-id"


def read_removals(paths: Sequence[str | Path], entity_ids: Sequence[str], rejects: Rejects) -> Removals:
    """Read files of ids, one per line; empty lines are passed over.

    Ids are put into the same form as those of a catalogue: NFC, white space squeezed. The files are added
    to those that `rejects` knows, and the command line, if it names ids, as a last one with an id per line.

    Args:
        paths: The files, plain or compressed.
        entity_ids: Further ids.
        rejects: Gets lines that are not UTF-8.

    Raises:
        SourceError: a file cannot be read.
    """
    first = len(rejects.files)
    rejects.files = (*rejects.files, *map(str, paths), *([COMMAND_LINE] if entity_ids else []))
    ids: list[pa.Array] = []
    files = [np.empty(0, dtype=np.int32)]
    lines = [np.empty(0, dtype=np.int64)]
    for file, block in _blocks(paths, entity_ids, first, rejects):
        ids.append(pa.array([entity_id for _, entity_id in block], type=pa.string()))
        files.append(np.full(len(block), file, dtype=np.int32))
        lines.append(np.array([line for line, _ in block], dtype=np.int64))
    return Removals(
        entity_ids=pa.chunked_array(ids, type=pa.string()),
        files=np.concatenate(files),
        lines=np.concatenate(lines),
        sources=(*digest_files(list(paths)), *([_given(entity_ids)] if entity_ids else [])),
    )


def _given(entity_ids: Sequence[str]) -> FileEntry:
    """Describe ids from the command line as the file they might have come in."""
    data = "".join(f"{entity_id}\n" for entity_id in entity_ids).encode()
    return FileEntry(COMMAND_LINE, len(data), digest_bytes(data))


def _blocks(
    paths: Sequence[str | Path], entity_ids: Sequence[str], first: int, rejects: Rejects
) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yield the number of a file and a block of its lines and ids."""
    for file, path in enumerate(paths, start=first):
        for block in _read(path, file, rejects):
            yield file, block
    yield first + len(paths), [(line, normalize(text)) for line, text in enumerate(entity_ids, start=1)]


def _read(path: str | Path, file: int, rejects: Rejects) -> Iterator[list[tuple[int, str]]]:
    if not Path(path).is_file():
        raise SourceError(f"{path}: no such file; ids to remove are read from files, one id per line")
    stream = ByteStream(path)
    try:
        for first, block in line_blocks(stream, 0):
            ids: list[tuple[int, str]] = []
            for line, raw in enumerate(block.split(b"\n"), start=first):
                try:
                    entity_id = normalize(raw.decode("utf-8"))
                except UnicodeDecodeError as error:
                    rejects.add(line, Reason.BAD_UTF8, raw, f"byte {error.start + 1}", file)
                    continue
                if entity_id:
                    ids.append((line, entity_id))
            yield ids
    finally:
        stream.close()
