"""A corpus: the input files of a run and how documents are read from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from retrieval.linking.documents.document import BadDocument, Document
from retrieval.linking.documents.shard import Shard

SPAN_UNITS = ("codepoint", "byte", "utf16")
INPUT_FORMATS = ("auto", "jsonl", "parquet", "text", "lines")
DEFAULT_SHARD_DOCUMENTS = 1000
DEFAULT_SHARD_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """How documents are read; can be sent to other processes.

    Attributes:
        inputs: Files and folders.
        input_format: One of `INPUT_FORMATS`; "auto": by the name, or by what a folder's files are called.
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
    raise NotImplementedError


def read_shard(options: CorpusOptions, shard: Shard) -> Iterator[Document | BadDocument]:
    """Yield the documents of a shard, in order, in bounded memory.

    Raises:
        SourceError: a file cannot be read any more, or is not what it was when the shards were planned.
    """
    raise NotImplementedError
