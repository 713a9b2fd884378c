"""Which versions an index directory holds and which one is live."""

from __future__ import annotations

from pathlib import Path

from retrieval.errors import IndexFormatError, IndexNotFoundError
from retrieval.index.layout import CURRENT_FILE, MANIFEST_FILE, VERSION_PATTERN, VERSIONS_DIR


def live_version(index: Path) -> str:
    """Return the id named by CURRENT.

    Raises:
        IndexNotFoundError: `index` is no index directory.
        IndexFormatError: CURRENT is damaged.
    """
    file = index / CURRENT_FILE
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        if not index.exists():
            raise IndexNotFoundError(f"{index}: no such directory") from None
        raise IndexNotFoundError(f"{index}: not an index: it has no file {CURRENT_FILE}") from None
    except OSError as error:
        raise IndexNotFoundError(f"{file}: cannot be read: {error.strerror}") from error
    name = text.removesuffix(b"\n").decode("ascii", errors="replace")
    if VERSION_PATTERN.fullmatch(name) is None:
        raise IndexFormatError(f"{file}: damaged: expected the id of a version, got {name[:80]!r}")
    return name


def version_dir(path: Path) -> Path:
    """Return the version directory to read: the live one of an index directory, or `path` itself.

    Raises:
        IndexNotFoundError: `path` is neither an index nor a version directory.
        IndexFormatError: CURRENT is damaged or names a version that is not there.
    """
    if not (path / CURRENT_FILE).exists() and (path / MANIFEST_FILE).is_file():
        return path
    folder = path / VERSIONS_DIR / live_version(path)
    if not folder.is_dir():
        raise IndexFormatError(f"{path / CURRENT_FILE}: names version {folder.name}, which is not there")
    return folder


def list_versions(index: Path) -> list[str]:
    """Return the ids of all published versions, the most recently published first."""
    folder = index / VERSIONS_DIR
    if not folder.is_dir():
        return []
    found = [entry for entry in folder.iterdir() if VERSION_PATTERN.fullmatch(entry.name)]
    return [entry.name for entry in sorted(found, key=lambda e: (-e.stat().st_mtime_ns, e.name))]
