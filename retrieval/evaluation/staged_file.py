"""Text files that are there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from retrieval.durable import appearing, writing


@contextmanager
def staged_file(path: str | Path) -> Iterator[TextIO]:
    """Open a file that takes its name when the block ends without an error; the folder is made.

    Until then what is written is in a hidden file beside it, which only a killed process leaves behind.

    Raises:
        SourceError: the folder or the file cannot be written.
    """
    file = Path(path)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    with (
        appearing(file) as staging,
        writing(file),
        staging.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        yield stream
