"""Copies of files that lie elsewhere, at addresses such as s3://bucket/titles.parquet, which fsspec reads.

A copy that was cut short goes on where it ended, as long as the object is the same: of one size, and of one
ETag or time of change.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import Any
from urllib.parse import urlsplit

import xxhash

from genret.retrieval.durable import naming, write_synced
from genret.retrieval.errors import MissingExtraError, SourceError
from genret.retrieval.progress import StepProgress

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_WEB = ("http", "https")
# Packages that fsspec needs for a kind of address.
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "az": "adlfs",
    "abfs": "adlfs",
    "sftp": "paramiko",
}
# What file systems call that which changes with an object.
_MARKS = ("etag", "last-modified", "lastmodified", "last_modified", "mtime", "updated", "created", "md5hash")
_BLOCK_BYTES = 1 << 20
_SYNCED_BYTES = 1 << 26  # after which the length of a copy is noted
_TRIES = 4  # in a row that bring nothing


class RemotePath(PosixPath):
    """A path that messages and manifests call by an address, without its credentials and its query."""

    address = ""  # the address as it was given; "" if that is the path itself
    name_shown = ""  # its name in messages

    @classmethod
    def of(cls, address: str, copy: str | Path | None = None) -> RemotePath:
        """Return the path of the copy of an object, or without one a path that no file has."""
        path = cls(address if copy is None else copy)
        path.address, path.name_shown = address, shown_address(address)
        return path


def is_remote(text: object) -> bool:
    """Whether a text is the address of a file elsewhere."""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def source_path(text: str) -> Path:
    """Return the path that a text names: an address or a file."""
    return RemotePath.of(text) if is_remote(text) else Path(text)


def shown_address(address: str) -> str:
    """Return an address without user, password, query and fragment, of which each may be a secret."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def fetched(address: str, folder: Path, progress: StepProgress, hint: str = "") -> list[RemotePath]:
    """Return copies of the objects at an address, in the order of their names; `*` stands for several.

    Args:
        address: Address; except for http and https it may be a pattern with `*`, `?` and `[…]`.
        folder: Folder of the copies; copies there that are whole, or were cut short, are used.
        progress: Notified of every object.
        hint: Text behind the size of every object that has to be copied.

    Raises:
        MissingExtraError: fsspec is not installed.
        SourceError: there is no such object, it cannot be read to its end, or a package is missing.
        OSError: the copy cannot be written; `filename` is set.
    """
    remote = _Remote(address)
    return [RemotePath.of(one, _Copy(remote, one, folder).made(progress, hint)) for one in remote.addresses()]


class _Remote:
    """The file system of an address, with its errors in one line."""

    def __init__(self, address: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise MissingExtraError("fsspec", "remote") from None
        self._address = address
        self.shown = shown_address(address)
        self.protocol = address.partition("://")[0].lower()
        try:
            self.files, self._path = fsspec.core.url_to_fs(address, use_listings_cache=False)
        except ImportError as error:
            if self.protocol in _WEB:
                raise MissingExtraError("aiohttp", "remote") from None
            package = _PACKAGES.get(self.protocol)
            if package is None:
                raise SourceError(f"{self.shown}: {self._told(error)}") from None
            raise SourceError(
                f"{self.shown}: {self.protocol}:// needs the package {package}, which is not installed; "
                f"install it with: pip install {package}"
            ) from None
        except ValueError as error:
            raise SourceError(f"{self.shown}: no such kind of address: {self._told(error)}") from None
        except Exception as error:  # of the library behind, such as missing credentials
            raise self.failure(error) from None

    def addresses(self) -> list[str]:
        """Return the addresses of the objects."""
        if self.protocol in _WEB or not any(sign in self._address for sign in "*?["):
            return [self._address]
        try:
            found = sorted(self.files.glob(self._path))
        except Exception as error:
            raise self.failure(error) from None
        if not found:
            raise SourceError(f"{self.shown}: no object has such a name")
        return [self.files.unstrip_protocol(path) for path in found]

    def identity(self, address: str) -> dict[str, Any]:
        """Return what shows that an object is the same: its size, and all that changes with it."""
        try:
            info = self.files.info(address)
        except Exception as error:
            raise self.failure(error, shown_address(address)) from None
        if info.get("type") == "directory":
            raise SourceError(
                f"{shown_address(address)}: this is a directory; expected an object or a pattern"
            )
        marks = {name: str(value) for name, value in info.items() if name.lower() in _MARKS and value}
        return {"size": info.get("size"), **marks}

    def failure(self, error: BaseException, shown: str = "") -> SourceError:
        """Return an error of a library in one line."""
        if isinstance(error, FileNotFoundError):  # fsspec says so of whatever a web server answers
            error = error.__cause__ or error
        shown, reply = shown or self.shown, getattr(error, "response", None)
        status = getattr(error, "status", None) or getattr(reply, "status_code", None)  # of aiohttp; the hub
        if isinstance(error, FileNotFoundError) or status == 404:
            return SourceError(f"{shown}: there is no such object")
        if isinstance(error, PermissionError) or status in (401, 403):
            return SourceError(f"{shown}: access is denied; does its library find the credentials?")
        return SourceError(f"{shown}: cannot be read: {self._told(error)}")

    def _told(self, error: BaseException) -> str:
        """Return the text of an error without the secrets of the address."""
        parts = urlsplit(self._address)
        text = " ".join(str(error).split()) or type(error).__name__
        secrets = (parts.query, parts.fragment, parts.netloc.rpartition("@")[0], parts.password)
        for secret in filter(None, secrets):
            text = text.replace(secret, "…")
        return text


@dataclass
class _Copy:
    """The copy of one object in a folder of its own, whose name keeps the object's."""

    remote: _Remote
    address: str
    folder: Path

    def __post_init__(self) -> None:
        shown = shown_address(self.address)
        place = self.folder / xxhash.xxh3_128_hexdigest(self.address.encode())
        self._shown = shown
        self._file = place / (Path(urlsplit(shown).path).name or "object")
        self._note = place / "copy.json"
        self._streams = False  # whether only all of the object can be had, from front to back

    def made(self, progress: StepProgress, hint: str) -> Path:
        """Return the whole copy; what is there of it is kept."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        identity, in_vain = self.remote.identity(self.address), 0
        if (size := identity["size"]) is None or self._begin(identity) < size:
            told = "unknown size" if size is None else f"{size:,} bytes"
            progress.note(f"{self._shown}: all of it is copied first, {told}{hint}")
        progress.phase(f"downloading {self._shown}", identity["size"])
        self._file.touch()
        while (begin := self._begin(identity)) != identity["size"]:
            failure = None
            try:
                self._read_on(begin, identity, progress)
            except SourceError as error:
                failure = error
            now = self.remote.identity(self.address)
            have = self._begin(now)
            if now == identity and failure is None and have == (now["size"] or 0):
                break  # also of an object that does not tell its size
            in_vain = in_vain + 1 if have <= begin else 0
            if in_vain == _TRIES:
                raise failure or SourceError(
                    f"{self._shown}: expected {now['size'] or 0:,} bytes, got {have:,}; does it change?"
                )
            identity = now
        return self._file

    def _begin(self, identity: Mapping[str, Any]) -> int:
        """Return how many bytes of the object are here."""
        try:
            noted = json.loads(self._note.read_bytes())
            have = min(int(noted.pop("have")), self._file.stat().st_size)
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        return have if noted == identity and identity["size"] is not None else 0

    def _read_on(self, begin: int, identity: Mapping[str, Any], progress: StepProgress) -> None:
        """Copy from a place to the end, or as far as it goes."""
        with naming(self._file), self._file.open("r+b" if begin else "wb") as copy:
            copy.truncate(begin)
            copy.seek(begin)
            have = noted = begin
            try:
                for block in self._blocks(begin):
                    if block is None:  # no ranges: all comes again
                        copy.seek(0)
                        copy.truncate()
                        have = noted = 0
                        continue
                    copy.write(block)
                    have += len(block)
                    progress.advance(have, f"{have / 1e6:,.0f} MB")
                    if have - noted >= _SYNCED_BYTES:
                        self._note_down(copy, have, identity)
                        noted = have
            finally:
                self._note_down(copy, have, identity)

    def _blocks(self, begin: int) -> Any:
        """Yield the content from a place on; None first if it comes from the beginning instead."""
        if begin and self._streams:
            yield None
        size = 0 if self._streams else _BLOCK_BYTES
        try:
            with self.remote.files.open(self.address, "rb", block_size=size) as file:
                if begin and not self._streams:
                    file.seek(begin)
                while block := file.read(_BLOCK_BYTES):
                    yield block
        except Exception as error:
            # So fsspec says that a server has no ranges; the next try reads from the beginning.
            self._streams = self._streams or isinstance(error, ValueError)
            raise self.remote.failure(error, self._shown) from None

    def _note_down(self, copy: Any, have: int, identity: Mapping[str, Any]) -> None:
        copy.flush()
        os.fsync(copy.fileno())
        write_synced(self._note, json.dumps({**identity, "have": have}).encode())
