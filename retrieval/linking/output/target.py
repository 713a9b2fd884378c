"""Where the output of a run goes: a folder of parts, or one file that is made of them in the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import InputError, SourceError
from retrieval.linking.output.layout import PARTS_SUFFIX
from retrieval.normalize import find_surrogate

_FILE_SUFFIXES = {".parquet": "parquet", ".jsonl": "jsonl"}
# Names that no folder has: whoever writes them wants a file.
_OTHER_SUFFIXES = frozenset(
    {".json", ".csv", ".tsv", ".txt", ".gz", ".zst", ".arrow", ".pq", ".ndjson", ".xml"}
)


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """What `--out` names.

    Attributes:
        folder: Folder of the run.
        output_format: "parquet" or "jsonl".
        file: The single file to make in the end; None: the folder is the output.
    """

    folder: Path
    output_format: str
    file: Path | None = None

    @property
    def name(self) -> Path:
        """What the user asked for."""
        return self.folder if self.file is None else self.file

    @classmethod
    def of(cls, out: str | Path, output_format: str | None = None) -> OutputTarget:
        """Say what is meant, and refuse what cannot be written, before any work is done.

        Args:
            out: A name that ends in .parquet or .jsonl is a file, any other one a folder.
            output_format: Of the parts of a folder; None: Parquet. Of a file the name says it.

        Raises:
            InputError: the name is empty or not UTF-8, that of another kind of file or of a link that leads
                nowhere, or contradicts the format.
            SourceError: the folder that it is to be in is missing.
        """
        if not str(out):
            raise InputError("out", "must not be empty")
        if find_surrogate(str(out)) is not None:  # Arrow cannot open such a file
            raise InputError("out", f"the name is not valid UTF-8, got {str(out)!r}")
        path = Path(out)
        named = _FILE_SUFFIXES.get(path.suffix)
        if named is None and path.suffix in _OTHER_SUFFIXES and not path.is_dir():
            raise InputError("out", f"must be a folder, or end in .parquet or .jsonl, got {path.name!r}")
        if named is not None and output_format not in (None, named):
            raise InputError("format", f"must be {named} for {path.name!r}, got {output_format}")
        if named is not None and path.is_dir():
            raise InputError(
                "out", f"{path} is a directory; a name ending in {path.suffix} is that of a file"
            )
        if named is None and path.exists() and not path.is_dir():
            raise InputError("out", f"{path} is a file; expected a folder, or a name in .parquet or .jsonl")
        if path.is_symlink() and not path.exists():
            raise InputError("out", f"{path} is a link to {path.readlink()}, which is not there")
        if not path.absolute().parent.is_dir():
            raise SourceError(f"{path}: cannot be written: there is no folder {path.parent}")
        if named is None:
            return cls(path, output_format or "parquet")
        return cls(path.with_name(path.name + PARTS_SUFFIX), named, path)
