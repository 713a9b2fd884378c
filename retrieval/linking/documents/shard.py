"""A shard: the part of a corpus that is linked, written and recorded as one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
