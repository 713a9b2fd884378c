"""Whether an input file is still what it was when the shards were planned."""

from __future__ import annotations

from retrieval.errors import SourceError
from retrieval.linking.documents.shard import ShardFile
from retrieval.sources.digests import FileState


def check_size(file: ShardFile) -> None:
    """Look at the size of a file.

    Raises:
        SourceError: it cannot be looked at, or is another one.
    """
    state = FileState.of(file.path)
    if state is None or file.num_bytes < 0:
        return
    if state.bytes != file.num_bytes:
        raise changed(file, f"it had {file.num_bytes} bytes and has {state.bytes}")


def changed(file: ShardFile, how: str) -> SourceError:
    """Return the error for a file that is not what it was."""
    return SourceError(
        f"{file.path}: the file has changed since the run was planned ({how}); put it back as it was, or "
        "begin the run anew with another output folder"
    )
