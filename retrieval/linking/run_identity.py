"""What a linking run is about: whatever decides its rows, so that only the same run is taken up again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retrieval.checkpoint_fingerprint import model_fingerprint
from retrieval.compatibility import default_model_of
from retrieval.errors import SourceError
from retrieval.index.digests import digest_bytes, digest_file
from retrieval.index.reader import Index
from retrieval.linking.documents.corpus import CorpusOptions, CorpusPlan
from retrieval.linking.options import LinkOptions, WorkerOptions

FORMAT_VERSION = 2
_STOP_WORD_LISTS = ("english", "none")
_SHOWN_INPUTS = 3


@dataclass(frozen=True, slots=True)
class IndexIdentity:
    """The live version of an index.

    Attributes:
        version: Its name.
        digest: Digest of its manifest.
    """

    version: str
    digest: str

    @classmethod
    def of(cls, path: str, verify_digests: bool) -> IndexIdentity:
        """Open an index and see which it is.

        Raises:
            IndexDirectoryError: it cannot be used.
        """
        with Index.open(path, verify_digests=verify_digests) as index:
            return cls(index.version, index.digest)


def run_identity(
    plan: CorpusPlan,
    corpus: CorpusOptions,
    options: LinkOptions,
    worker: WorkerOptions,
    index: IndexIdentity,
    output_format: str,
) -> dict[str, Any]:
    """Return the identity of a run as JSON, its key under "key".

    Where folders lie is not in it: the same files elsewhere make the same rows. What the rows call an input
    is, and that of a file is its name as it was given.

    Raises:
        ModelError: the checkpoint cannot be read.
        SourceError: the list of stop words cannot be read.
    """
    reading = asdict(corpus)
    del reading["inputs"]
    linking = asdict(options)
    linking["find"]["stop_words"] = _stop_words(options.find.stop_words)
    identity = {
        "format": FORMAT_VERSION,
        "inputs": dict(sorted(plan.digests.items())),
        "num_bytes": plan.num_bytes,
        "num_documents": plan.num_documents,
        "num_shards": len(plan.shards),
        "shards": digest_bytes("".join(shard.digest for shard in plan.shards).encode()),
        "corpus": reading,
        "options": linking,
        "index": asdict(index),
        "model": model_fingerprint(_model_of(worker)),
        "dtype": worker.dtype,
        "output_format": output_format,
    }
    return {**identity, "key": digest_bytes(_canonical(identity))}


def _model_of(worker: WorkerOptions) -> str | Path:
    """Return the model that a worker opens, as `Retriever.open` finds it.

    Raises:
        GenretError: none is named, and none was shipped for the index.
    """
    if worker.model is not None:
        return worker.model
    with Index.open(worker.index, verify_digests=False) as index:
        return default_model_of(index)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words how two runs differ, in the order of what a user looks at; empty: they do not."""
    if before.get("key") == now["key"]:
        return []
    found = []
    if before.get("format") != now["format"]:
        found.append(f"the run's format was {before.get('format')}, is now {now['format']}")
    found += _changed_inputs(_mapping(before, "inputs"), _mapping(now, "inputs"))
    for group in ("corpus", "options"):
        found += _changed(group, _mapping(before, group), _mapping(now, group))
    was, becomes = _mapping(before, "index"), _mapping(now, "index")
    if was != becomes:
        found.append(f"the index was {was.get('version')}, is now {becomes['version']}")
    for name, noun in (
        ("model", "the model"),
        ("dtype", "--dtype"),
        ("output_format", "the format of the output"),
    ):
        if before.get(name) != now[name]:
            found.append(f"{noun} was {before.get(name)}, is now {now[name]}")
    return found or ["the documents are cut into other shards"]


def _changed_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changed = [name for name in before if name in now and before[name] != now[name]]
    gone = [name for name in before if name not in now]
    new = [name for name in now if name not in before]
    return [
        f"{_some(names)} {what}"
        for names, what in (
            (changed, "has other contents now"),
            (gone, "was an input and is none now"),
            (new, "was no input and is one now"),
        )
        if names
    ]


def _some(names: list[str]) -> str:
    more = f" (and {len(names) - _SHOWN_INPUTS} more files)" if len(names) > _SHOWN_INPUTS else ""
    return ", ".join(names[:_SHOWN_INPUTS]) + more


def _changed(group: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found = []
    for name in now:
        was, becomes = before.get(name), now[name]
        if was == becomes:
            continue
        if isinstance(was, Mapping) and isinstance(becomes, Mapping):
            found += _changed(name, was, becomes)
        else:
            found.append(f"{name} was {json.dumps(was)}, is now {json.dumps(becomes)}")
    return found


def _mapping(identity: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = identity.get(name)
    return value if isinstance(value, Mapping) else {}


def _stop_words(named: str) -> str:
    if named in _STOP_WORD_LISTS:
        return named
    try:
        return "xxh3:" + digest_file(Path(named))
    except OSError as error:
        raise SourceError(f"{named}: the list of stop words cannot be read: {error.strerror}") from error


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=True).encode("ascii")
