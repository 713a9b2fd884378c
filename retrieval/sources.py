"""Reading a titles file: TSV with a header, or one title per line; UTF-8, any line ending, a BOM or none.

The index builder and training read catalogues with this module, so they agree on what a record is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, NamedTuple, Self

import xxhash

from retrieval.errors import SourceError
from retrieval.index.layout import ALIASES, ENTITY_ID, TITLE
from retrieval.index.manifest import FileEntry
from retrieval.normalize import find_control, normalize
from retrieval.rejects import Reason, Rejects

SourceFormat = Literal["auto", "tsv", "lines"]

STDIN = "-"
ALIAS_SEPARATOR = "|"
_BLOCK_BYTES = 1 << 22
_MAX_LINE_BYTES = 1 << 24
_BOM = b"\xef\xbb\xbf"
_BINARY_MAGICS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


class Record(NamedTuple):
    """One good line of a source.

    Attributes:
        line: Line number, from 1.
        entity_id: None when the source has no such column.
        title: Normalised.
        aliases: Normalised, without empty, repeated ones and the title.
        metadata: One cell per metadata column; None where empty.
    """

    line: int
    entity_id: str | None
    title: str
    aliases: tuple[str, ...]
    metadata: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the fields of a line are.

    Attributes:
        title: Position of the title.
        entity_id: Position of the id, or None.
        aliases: Position of the aliases, or None.
        metadata: Positions of the metadata.
        names: Names of the metadata columns.
        count: Fields per line.
    """

    title: int = 0
    entity_id: int | None = None
    aliases: int | None = None
    metadata: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    count: int = 1

    @classmethod
    def from_header(cls, cells: list[str], where: str) -> Columns:
        """Read a header line.

        Raises:
            SourceError: no `title`, a column twice, or one without a name.
        """
        names = [
            cell if cell.casefold() not in (TITLE, ENTITY_ID, ALIASES) else cell.casefold() for cell in cells
        ]
        if TITLE not in names:
            raise SourceError(f"{where}: no column is called 'title'; the header has {names}")
        if "" in names:
            raise SourceError(f"{where}: column {names.index('') + 1} of the header has no name")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SourceError(f"{where}: the header names these columns more than once: {twice}")
        metadata = tuple(i for i, name in enumerate(names) if name not in (TITLE, ENTITY_ID, ALIASES))
        return cls(
            title=names.index(TITLE),
            entity_id=names.index(ENTITY_ID) if ENTITY_ID in names else None,
            aliases=names.index(ALIASES) if ALIASES in names else None,
            metadata=metadata,
            names=tuple(names[i] for i in metadata),
            count=len(names),
        )


class TitleSource:
    """A titles file, or standard input, read once from front to back.

    Args:
        path: The file; "-" for standard input.
        source_format: "auto" looks at the first line.

    Raises:
        SourceError: it is missing, a directory, empty, unreadable or evidently no text.
    """

    def __init__(self, path: str | Path, source_format: SourceFormat = "auto") -> None:
        self.name = "standard input" if str(path) == STDIN else str(path)
        self._short_name = STDIN if str(path) == STDIN else Path(path).name
        self._file = _open(path, self.name)
        self.num_bytes: int | None = None if str(path) == STDIN else Path(path).stat().st_size
        self.bytes_read = 0
        self.records_read = 0
        self._digest = xxhash.xxh3_128()
        try:
            self._lines = self._blocks()
            self._pending = next(self._lines, [])
            self._next_line = 1
            self.columns = self._read_header(source_format)
        except BaseException:
            self._file.close()
            raise

    def batches(self, size: int, rejects: Rejects) -> Iterator[list[Record]]:
        """Yield the good records in batches; bad ones go to `rejects`.

        Raises:
            SourceError: the source holds no record at all, or cannot be read to its end.
        """
        batch: list[Record] = []
        lines = self._pending
        while True:
            for raw in lines:
                record = self._parse(raw, rejects)
                self._next_line += 1
                self.records_read += 1
                if record is not None:
                    batch.append(record)
                    if len(batch) == size:
                        yield batch
                        batch = []
            following = next(self._lines, None)
            if following is None:
                break
            lines = following
        if not self.records_read:
            raise SourceError(f"{self.name}: there is a header but no title below it")
        if batch:
            yield batch

    def entry(self) -> FileEntry:
        """Return size and digest of what was read."""
        return FileEntry(self._short_name, self.bytes_read, self._digest.hexdigest())

    def close(self) -> None:
        """Close the file."""
        if self._file is not sys.stdin.buffer:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _blocks(self) -> Iterator[list[bytes]]:
        """Yield the lines without their ends, a block of the file at a time."""
        carry = b""
        while True:
            try:
                block = self._file.read(_BLOCK_BYTES)
            except OSError as error:
                raise SourceError(f"{self.name}: cannot be read: {error.strerror}") from error
            if not self.bytes_read:
                self._refuse_binary(block)
            if not block:
                break
            self.bytes_read += len(block)
            self._digest.update(block)
            lines = (carry + block).split(b"\n")
            carry = lines.pop()
            if len(carry) > _MAX_LINE_BYTES:
                raise SourceError(f"{self.name}: a line is longer than {_MAX_LINE_BYTES} bytes")
            if lines:
                yield lines
        if carry:
            yield [carry]

    def _refuse_binary(self, block: bytes) -> None:
        if not block.removeprefix(_BOM).strip():
            raise SourceError(f"{self.name}: the file is empty")
        for magic, kind in _BINARY_MAGICS.items():
            if block.startswith(magic):
                raise SourceError(f"{self.name}: this is a {kind} file; expected UTF-8 text")

    def _read_header(self, source_format: SourceFormat) -> Columns:
        first = self._pending[0].removeprefix(_BOM)
        self._pending[0] = first
        if source_format == "lines":
            return Columns()
        text = first.removesuffix(b"\r").decode("utf-8", errors="replace")
        cells = [normalize(cell) for cell in text.split("\t")]
        is_header = TITLE in [cell.casefold() for cell in cells]
        if source_format == "auto" and not is_header:
            if len(cells) == 1:
                return Columns()
            raise SourceError(
                f"{self.name}: line 1 has tabs, but none of its fields is 'title'; expected a header such as "
                "'entity_id<TAB>title<TAB>aliases', or one title per line without tabs"
            )
        self._pending = self._pending[1:]
        self._next_line = 2
        return Columns.from_header(cells, f"{self.name}, line 1")

    def _parse(self, raw: bytes, rejects: Rejects) -> Record | None:
        line, columns = self._next_line, self.columns
        try:
            text = raw.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            rejects.add(line, Reason.BAD_UTF8, raw, f"byte {error.start + 1}")
            return None
        control = find_control(text)
        if control is not None:
            rejects.add(line, Reason.CONTROL_CHARACTER, text, control)
            return None
        cells = [normalize(cell) for cell in text.split("\t")]
        if len(cells) != columns.count:
            many = len(cells) > columns.count
            if text and not text.isspace():
                reason = Reason.TOO_MANY_FIELDS if many else Reason.TOO_FEW_FIELDS
                rejects.add(line, reason, text, f"expected {columns.count} fields, got {len(cells)}")
            else:
                rejects.add(line, Reason.NO_TITLE, text)
            return None
        title = cells[columns.title]
        if not title:
            rejects.add(line, Reason.NO_TITLE, text)
            return None
        entity_id = None if columns.entity_id is None else cells[columns.entity_id]
        if entity_id == "":
            rejects.add(line, Reason.NO_ENTITY_ID, text)
            return None
        aliases: tuple[str, ...] = ()
        if columns.aliases is not None and cells[columns.aliases]:
            forms = (normalize(alias) for alias in cells[columns.aliases].split(ALIAS_SEPARATOR))
            aliases = tuple(dict.fromkeys(form for form in forms if form and form != title))
        return Record(line, entity_id, title, aliases, tuple([cells[i] or None for i in columns.metadata]))


def numbered_id(title: str, number: int, is_taken: Callable[[str], bool]) -> str:
    """Return the id of the `number`-th entity of a title in a source without ids: `title#number`.

    A title that looks like this makes it go out of its way with a further "#".

    Args:
        title: The title that several entities have.
        number: From 2; the first entity's id is the title.
        is_taken: Whether a text is a title of the source.
    """
    candidate = f"{title}#{number}"
    while is_taken(candidate):
        candidate = candidate.replace(f"{title}#", f"{title}##", 1)
    return candidate


def _open(path: str | Path, name: str) -> BinaryIO:
    if str(path) == STDIN:
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except FileNotFoundError:
        raise SourceError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise SourceError(f"{name}: this is a directory; expected a titles file") from None
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}") from error
