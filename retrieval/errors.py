"""Every error that reaches a user, as one small tree.

GenretError                      a message for the user; never a traceback
├── InputError                   what the caller gave is wrong (field, expected, got)
├── SourceError                  a titles/mentions file cannot be used (file, line)
├── IndexDirectoryError          something is wrong with an index
│   ├── IndexNotFoundError       no index at that path, or no such name
│   ├── IndexFormatError         not an index, or a broken manifest or file structure
│   ├── IndexVersionError        written by another format version
│   ├── IndexChecksumError       a file's size or digest differs from the manifest
│   ├── IndexMismatchError       index and model/tokenizer do not fit together
│   └── EvidenceMissingError      the index was built without vectors
├── ModelError                   a checkpoint cannot be loaded or cannot be used
└── MissingExtraError            an optional dependency is not installed (names the extra)
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from importlib.util import find_spec

PIP = "pip" if find_spec("pip") else "uv pip"  # what installs here: environments of uv have no pip
_MOST_CHARS = 100  # of a name: what is longer is like none


class GenretError(Exception):
    """Base of every error meant for a user: its text names what, where, expected and got."""


class InputError(GenretError, ValueError):
    """A value given by the caller is wrong.

    Args:
        field: Name of the parameter or request field, e.g. "k" or "queries[3]".
        message: What was expected and what was got, as one clause.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class SourceError(GenretError):
    """An input file is missing, empty or malformed; the text names file and line."""


class IndexDirectoryError(GenretError):
    """Base of the errors about an index directory."""


class IndexNotFoundError(IndexDirectoryError):
    """There is no index at the given path or under the given name."""


class IndexFormatError(IndexDirectoryError):
    """The directory is not an index, or one of its files is structurally broken."""


class IndexVersionError(IndexDirectoryError):
    """The index was written in a format version this library cannot read."""


class IndexChecksumError(IndexDirectoryError):
    """A file's size or digest differs from what the manifest says.

    Args:
        file: Path of the file relative to the index version directory.
        message: What was expected and what was got.
    """

    def __init__(self, file: str, message: str) -> None:
        super().__init__(f"{file}: {message}")
        self.file = file


class IndexMismatchError(IndexDirectoryError):
    """The index was built for another tokenizer, vocabulary or rendering than the model in use."""


class EvidenceMissingError(IndexDirectoryError):
    """The index has none of the evidence that the method or the command needs."""


class ModelError(GenretError):
    """A checkpoint cannot be loaded, or its architecture cannot be used."""


class MissingExtraError(GenretError):
    """The optional dependency `package` is missing; the extra `extra` installs it."""

    def __init__(self, package: str, extra: str, otherwise: str = "") -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed; "
            f"install it with: {PIP} install 'generative-retrieval[{extra}]'{otherwise}"
        )
        self.package = package
        self.extra = extra


def require_package(package: str, extra: str, otherwise: str = "") -> None:
    """Raise MissingExtraError, with what else to do, unless a package is installed; it is not imported."""
    if find_spec(package) is None:
        raise MissingExtraError(package, extra, otherwise)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most like a name, or ends with it, as top_k with k; "" where none is."""
    folded, name = {one.casefold(): one for one in sorted(known)}, name.casefold()[:_MOST_CHARS]
    close = [one for one in folded if name.endswith(f"_{one}")]
    close = close or difflib.get_close_matches(name, folded, n=1, cutoff=cutoff)
    close = close or [one for one in folded if one.endswith(f"_{name}")]
    return folded[close[0]] if close else ""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return ", did you mean 'NAME'?" for the known name that is nearest; `otherwise` where none is."""
    near = nearest(name, known)
    return f", did you mean {near!r}?" if near else otherwise


# Names that others give to options of ours.
_OTHER_NAMES = {"evidence": "method", "schema": "schema_json", "width": "beam_size"}


def instead_of(name: str, known: Collection[str]) -> str:
    """Return the end of an error about an unknown name: the known one most like it, and all of them."""
    near = other if (other := _OTHER_NAMES.get(name)) in known else nearest(name, known)
    return f"; {f'did you mean {near}? ' if near else ''}there are: {', '.join(known) or 'none'}"
