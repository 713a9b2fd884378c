"""What is recorded of a finished shard: one small file each, so that many machines can write them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from retrieval.durable import replace_file
from retrieval.linking.counts import LinkCounts
from retrieval.linking.run_error import LinkingRunError

_T = TypeVar("_T")

# A record holds a few counts and complaints; what is longer is no record.
_MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What is recorded of a finished shard; its presence says that the part file is whole.

    Attributes:
        shard: The shard's number.
        key: `LinkJob.key` of the run.
        digest: `Shard.digest`.
        part: Name of the part file in the output folder.
        num_bytes: Its size.
        counts: What was linked.
        complaints: The first bad lines and failed mentions, as text.
        seconds: Wall time.
        part_digest: XXH3-128 of the part file.
        first_bad: The first line that is no document, and what is wrong with it.
    """

    shard: int
    key: str
    digest: str
    part: str
    num_bytes: int
    counts: LinkCounts
    complaints: tuple[str, ...] = ()
    seconds: float = 0.0
    part_digest: str = ""
    first_bad: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "complaints": list(self.complaints)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardRecord:
        """Read what `to_json` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(
                shard=_typed(value["shard"], int),
                key=_typed(value["key"], str),
                digest=_typed(value["digest"], str),
                part=_typed(value["part"], str),
                num_bytes=_typed(value["num_bytes"], int),
                counts=LinkCounts(**{name: _typed(n, int) for name, n in value["counts"].items()}),
                complaints=tuple(_typed(text, str) for text in value["complaints"]),
                seconds=float(value["seconds"]),
                part_digest=_typed(value["part_digest"], str),
                first_bad=_typed(value["first_bad"], str),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the record of a shard: {error}") from error


def write_record(file: Path, record: ShardRecord) -> None:
    """Write a record, in one step.

    Raises:
        SourceError: it cannot be written.
    """
    text = json.dumps(record.to_json(), ensure_ascii=False, sort_keys=True)
    replace_file(file, text.encode("utf-8", "backslashreplace") + b"\n")


def read_record(file: Path) -> ShardRecord | None:
    """Read a record; None where the file is gone or is no whole record, so that the shard is done again.

    Raises:
        LinkingRunError: the file cannot be read.
    """
    try:
        if file.stat().st_size > _MAX_RECORD_BYTES:
            return None
        return ShardRecord.from_json(json.loads(file.read_bytes()))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise LinkingRunError(f"{file}: cannot be read: {error.strerror}") from error


def _typed(value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value
