"""Describes a corpus: the input files, how documents are read from them, and the shards it is cut into.

A shard is the part of a corpus that is linked, written and recorded as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from retrieval.errors import InputError
from retrieval.linking.documents.text_document import MIN_PART_CHARS

SPAN_UNITS = ("codepoint", "byte", "utf16")
INPUT_FORMATS = ("auto", "jsonl", "parquet", "text", "lines")
DEFAULT_SHARD_DOCUMENTS = 1000
DEFAULT_SHARD_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """How documents are read; can be sent to other processes.

    All but Parquet files may be compressed with gzip or Zstandard, whatever their names say. Text is kept as
    it is, line ends included; a UTF-8 byte order mark at the front of a file is no part of it, and offsets
    count from behind it.

    Attributes:
        inputs: Files and folders.
        input_format: One of `INPUT_FORMATS`: "text" takes a file as one document, "lines" a line; "auto": by
            the name, or by what a folder's files are called.
        id_field: Field or column with a document's id.
        text_field: Field or column with its text.
        mentions_field: Field or column with its marked spans: objects with start, end and optionally id.
        span_unit: What spans count, one of `SPAN_UNITS`.
        shard_documents: Most documents of a shard.
        shard_chars: Length from which a document is linked in parts, and what a shard holds at most, but for
            a single document below that length.
    """

    inputs: tuple[str, ...]
    input_format: str = "auto"
    id_field: str = "id"
    text_field: str = "text"
    mentions_field: str = "mentions"
    span_unit: str = "codepoint"
    shard_documents: int = DEFAULT_SHARD_DOCUMENTS
    shard_chars: int = DEFAULT_SHARD_CHARS

    def __post_init__(self) -> None:
        for name, known in (("input_format", INPUT_FORMATS), ("span_unit", SPAN_UNITS)):
            if getattr(self, name) not in known:
                raise InputError(name, f"must be one of {list(known)}, got {getattr(self, name)!r}")
        for name, least in (("shard_documents", 1), ("shard_chars", MIN_PART_CHARS)):
            if getattr(self, name) < least:
                raise InputError(name, f"must be at least {least}, got {getattr(self, name)}")
        fields = [self.id_field, self.text_field, self.mentions_field]
        for name in ("id_field", "text_field", "mentions_field"):
            if not getattr(self, name):
                raise InputError(name, "must not be empty")
            if fields.count(getattr(self, name)) > 1:
                raise InputError(name, f"{getattr(self, name)!r} is named for two of id, text and mentions")


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """The shards of a corpus.

    Attributes:
        shards: In order; together they hold every document exactly once.
        num_documents: Documents, bad lines counted (they are found on reading).
        num_bytes: Size of the input files.
        digests: Digest of every input file's bytes, by its source.
    """

    shards: tuple[Shard, ...]
    num_documents: int
    num_bytes: int
    digests: dict[str, str]


def plan_corpus(options: CorpusOptions, report: Callable[[int], None] | None = None) -> CorpusPlan:
    """Read the input files once, in bounded memory, and cut them into shards.

    Args:
        options: What to read, and how.
        report: Told the bytes read so far.

    Raises:
        SourceError: a file is missing, unreadable, of no known format, or the corpus holds no document.
        InputError: an option is out of range; it is named.
    """
    from retrieval.linking.documents.corpus_reading import plan_files  # loads pyarrow

    return plan_files(options, report)


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A stretch of one input file.

    Attributes:
        path: Where the file is.
        source: How it is called in the output and in messages.
        first_row: Number of the first line or row read, from 1.
        num_rows: How many are read.
        byte_offset: Where the first of them begins in the content behind the decompression; of a part of a
            text file, where the part begins; 0 for Parquet.
        part: Of a document too long for one shard, the code points [begin, end) whose mentions are linked;
            None: all.
        num_bytes: Size of the file as it lies on disk, which must be the same on reading; -1: not known.
        digest: xxh3_64 of the bytes of the stretch, which must be the same on reading: of the lines
            with their ends, of a text file's content or the part of it, of a Parquet file's footer; "": not
            known.
    """

    path: str
    source: str
    first_row: int = 1
    num_rows: int = 1
    byte_offset: int = 0
    part: tuple[int, int] | None = None
    num_bytes: int = -1
    digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "part": self.part and list(self.part)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardFile:
        """Read what `to_json` gave, to the same value.

        Raises:
            ValueError: it is something else.
        """
        try:
            part = value["part"]
            return cls(**{**value, "part": None if part is None else tuple(part)})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stretch of a file: {error}") from error


@dataclass(frozen=True, slots=True)
class Shard:
    """What one worker links at a time.

    Attributes:
        number: From 0, in the order of the corpus.
        files: Stretches of input files, in order.
        num_documents: Documents in it; a part of one counts as one.
        digest: Fingerprint of what it reads: digests of the input files and the stretches of them.
    """

    number: int
    files: tuple[ShardFile, ...]
    num_documents: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "number": self.number,
            "files": [file.to_json() for file in self.files],
            "num_documents": self.num_documents,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Shard:
        """Read what `to_json` gave, to the same value.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(**{**value, "files": tuple(ShardFile.from_json(file) for file in value["files"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a shard: {error}") from error
