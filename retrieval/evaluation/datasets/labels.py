"""Says where a labelled set is (`SetSpec`) and what its labels say, and finds their entities in an index.

Titles and ids are looked up once, for the whole set. White space in ids is percent-encoded where white space
separates the fields of a file (`encode_token`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

from retrieval.errors import InputError
from retrieval.evaluation.labelled_sets import MISSING, LabelledQuery
from retrieval.types import Mention

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


class TitleResolver(Protocol):
    """Finds entities of an index by what labels call them, many at once: an index is passed over once."""

    def by_ids(self, entity_ids: Sequence[str]) -> list[str | None]:
        """Return the id of each entity, or None where the index has no such entity."""

    def by_titles(self, titles: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the ids of all entities that each title names, in the index's order; () where none does.

        Those whose title it is after the text policy; where there are none, those whose alias it is.
        """


@dataclass(frozen=True, slots=True)
class LabelAnswer:
    """What a label calls an entity.

    Attributes:
        entity_id: Its id, where the label has one.
        title: Its title, where the label has one; at least one of the two is there.
        grade: Above 0: relevant.
    """

    entity_id: str | None
    title: str | None
    grade: int = 1


@dataclass(frozen=True, slots=True)
class FileQuery:
    """A query as the files have it.

    Attributes:
        query_id: Unique in the set.
        text: The query; of a mention, its own text.
        answers: What is judged for it.
        mention: The mention in its context.
        evidence: Sets of places in `answers`.
        is_nil: Whether the label says that nothing answers.
        document: What it is part of.
        line: Number of its first line; 0 where no reader counts.
    """

    query_id: str
    text: str
    answers: tuple[LabelAnswer, ...]
    mention: Mention | None = None
    evidence: tuple[tuple[int, ...], ...] = ()
    is_nil: bool = False
    document: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """What the index says to every id and title of a set."""

    ids: Mapping[str, str | None]
    titles: Mapping[str, tuple[str, ...]]
    trusts_ids: bool

    def find(self, answer: LabelAnswer) -> tuple[str, ...]:
        """Return the entities an answer may mean; () where the index has none."""
        if answer.entity_id is not None and (self.trusts_ids or answer.title is None):
            found = self.ids[answer.entity_id]
            if found is not None:
                return (found,)
        return self.titles[answer.title] if answer.title is not None else ()


def find_answers(
    queries: Sequence[FileQuery], resolver: TitleResolver
) -> tuple[tuple[LabelledQuery, ...], int]:
    """Find the answers of all queries in the index.

    An id is looked up first, a title where the index lacks the id. The ids of a set are often not those of
    the index, and may by chance name other entities: where more of them contradict the titles beside them
    than agree with them, only titles count.

    Returns:
        The labelled queries, and the number of relevant answers that the index lacks.
    """
    known = _look_up(queries, resolver)
    labelled, num_missing = [], 0
    for query in queries:
        found, missing = _labelled(query, known)
        labelled.append(found)
        num_missing += missing
    return tuple(labelled), num_missing


def _look_up(queries: Sequence[FileQuery], resolver: TitleResolver) -> _Known:
    answers = [answer for query in queries for answer in query.answers]
    ids = list(dict.fromkeys(a.entity_id for a in answers if a.entity_id is not None))
    titles = list(dict.fromkeys(a.title for a in answers if a.title is not None))
    known_ids = dict(zip(ids, resolver.by_ids(ids), strict=True))
    known_titles = dict(zip(titles, resolver.by_titles(titles), strict=True))
    agree = contradict = 0
    for answer in dict.fromkeys((a.entity_id, a.title) for a in answers):
        entity_id, title = answer
        if entity_id is None or title is None or known_ids[entity_id] is None or not known_titles[title]:
            continue
        if known_ids[entity_id] in known_titles[title]:
            agree += 1
        else:
            contradict += 1
    return _Known(known_ids, known_titles, trusts_ids=contradict <= agree)


def _labelled(query: FileQuery, known: _Known) -> tuple[LabelledQuery, int]:
    gold: dict[str, int] = {}
    namesakes: dict[str, str] = {}
    chosen: list[str] = []
    for answer in query.answers:
        found = known.find(answer)
        # An entity that stands for others already goes on to do so, whatever label names it.
        first = next((namesakes.get(e, e) for e in found if e in gold or e in namesakes), None)
        if first is None:
            first = found[0] if found else MISSING + encode_token(answer.title or answer.entity_id or "")
        gold[first] = max(gold.get(first, answer.grade), answer.grade)
        chosen.append(first)
        for entity_id in found:
            if entity_id not in gold:
                namesakes.setdefault(entity_id, first)
    evidence = tuple(dict.fromkeys(frozenset(chosen[i] for i in places) for places in query.evidence))
    labelled = LabelledQuery(
        query_id=query.query_id,
        text=query.text,
        mention=query.mention,
        gold=gold,
        evidence=evidence,
        is_nil=query.is_nil,
        document=query.document,
        namesakes=namesakes,
    )
    return labelled, sum(grade > 0 and entity.startswith(MISSING) for entity, grade in gold.items())


# A percent sign that could be taken for the beginning of an encoded byte is encoded too: decoding gives back
# exactly what was encoded.
_ENCODED = re.compile(r"[\s\x00-\x1f\x7f-\x9f]|%(?=[0-9a-fA-F]{2})")


def encode_token(text: str) -> str:
    """Return a text without white space or control characters, by UTF-8 bytes as in "New%20York"."""
    return _ENCODED.sub(lambda match: quote(match.group(), safe=""), text)


def decode_token(token: str) -> str:
    """Return what `encode_token` was given; a token that it cannot have made stays as it is."""
    try:
        return unquote(token, errors="strict") if "%" in token else token
    except UnicodeDecodeError:  # bytes that are no UTF-8: a percent sign was one
        return token
