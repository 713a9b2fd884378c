"""Where a labelled set is and how it is read, as one text on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import InputError

SET_FORMATS = ("beir", "kilt", "trec", "mentions", "queries")
_NAME = re.compile(r"[^\s/=:#]+")
_ENDINGS = (".gz", ".zst", ".jsonl", ".json", ".tsv", ".txt", ".topics")
_FORM = "[NAME=]FORMAT:PATH[:QRELS], with FORMAT one of " + ", ".join(SET_FORMATS)


@dataclass(frozen=True, slots=True)
class SetSpec:
    """Where a set is and how it is read.

    Attributes:
        name: How reports call it.
        format: One of `SET_FORMATS`.
        path: "beir": the folder with queries.jsonl and qrels/; "kilt": a JSON Lines file; "trec": a file
            of topics; "mentions": JSON Lines as `genret link` reads them, with title or entity_id; "queries":
            JSON Lines with id, query and gold, or TSV with a header. All may be compressed (gzip, Zstandard).
        qrels: "trec": the file of judgments; "beir": the file or the split's name; None: qrels/test.tsv.
        limit: So many queries, the first ones; None: all.
        split: "queries": only the lines whose `split` is this one; None: all lines.
    """

    name: str
    format: str
    path: str
    qrels: str | None = None
    limit: int | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        if self.format not in SET_FORMATS:
            raise InputError("set", f"format must be one of {', '.join(SET_FORMATS)}, got {self.format!r}")
        if self.limit is not None and self.limit < 1:
            raise InputError("limit", f"must be at least 1, got {self.limit}")

    @classmethod
    def parse(cls, text: str) -> SetSpec:
        """Read NAME=FORMAT:PATH[:QRELS], or FORMAT:PATH named by the file.

        QRELS goes with "trec", where it is needed, and with "beir". A split of a file of queries stands
        behind its last "#": `queries:data/queries.tsv#test`.

        Raises:
            InputError: the text has another form.
        """
        name, equals, rest = text.partition("=")
        if not equals or ":" in name or "/" in name:  # an equals sign in a path names nothing
            name, rest = "", text
        elif not _NAME.fullmatch(name):
            raise InputError("set", f"the name must hold no white space, '/', '=', ':' or '#', got {name!r}")
        format_, colon, path = rest.partition(":")
        if not colon or format_ not in SET_FORMATS or not path:
            raise InputError("set", f"must be {_FORM}; got {text!r}")
        qrels = split = None
        if format_ in ("beir", "trec"):
            path, _, qrels = path.partition(":")
        if format_ == "trec" and not qrels:
            raise InputError("set", f"trec needs its judgments: trec:TOPICS:QRELS; got {text!r}")
        if format_ == "queries" and "#" in path:
            path, _, split = path.rpartition("#")
            if not split:
                raise InputError("set", f"must name a split behind '#', got {text!r}")
        if not path:
            raise InputError("set", f"must be {_FORM}; got {text!r}")
        return cls(name or _name_of(path, qrels, split), format_, path, qrels or None, split=split)


def _name_of(path: str, qrels: str | None, split: str | None) -> str:
    """Return the name of a set that was given none: that of its file, and of its split."""
    name = Path(path).resolve().name if path in (".", "..") else Path(path).name
    shortened = True
    while shortened:
        shortened = False
        for ending in _ENDINGS:
            if name.endswith(ending) and name != ending:
                name, shortened = name.removesuffix(ending), True
    part = split or (qrels if qrels and _NAME.fullmatch(qrels) and "." not in qrels else None)
    name = re.sub(r"[\s/=:#]+", "-", name)
    return f"{name}-{part}" if part else name
