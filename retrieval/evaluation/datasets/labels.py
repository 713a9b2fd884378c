"""Parses where a labelled set is (`SetSpec`), and finds the entities of its labels in an index."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from genret.retrieval.errors import InputError
from genret.retrieval.evaluation.datasets.index_entities import IndexResolver
from genret.retrieval.evaluation.labelled_sets import MISSING, LabelledQuery
from genret.retrieval.types import Mention

SET_FORMATS = ("beir", "kilt", "trec", "mentions", "queries")
_NAME = re.compile(r"[^\s/=:#]+")
_ENDINGS = (".gz", ".zst", ".jsonl", ".json", ".tsv", ".txt", ".topics")
_FORM = "[NAME=]FORMAT:PATH[:QRELS], with FORMAT one of " + ", ".join(SET_FORMATS)


@dataclass(frozen=True, slots=True)
class SetSpec:
    """The place and format of a set."""

    name: str  # name in reports
    format: str  # format, one of `SET_FORMATS`
    # "beir": the folder with queries.jsonl and qrels/; "kilt": a JSON Lines file; "trec": a file of topics;
    # "mentions": JSON Lines as `genret link` reads them, with title or entity_id; "queries": JSON Lines
    # with id, query and gold, or TSV with a header. Files may be compressed (gzip, Zstandard)
    path: str
    # "trec": file of judgments; "beir": file, or name of a split; None: qrels/test.tsv
    qrels: str | None = None
    limit: int | None = None  # most queries, the first ones; None: all
    split: str | None = None  # "queries": the only split that is read; None: all lines

    @classmethod
    def parse(cls, text: str) -> SetSpec:
        """Read NAME=FORMAT:PATH[:QRELS], or FORMAT:PATH named by the file; InputError for another form.

        QRELS goes with "trec", where it is needed, and with "beir". The split of a file of queries stands
        behind the last "#": `queries:data/queries.tsv#test`.
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
    """Return the name of a set without one: that of its file, and of its split."""
    name = Path(path).resolve().name if path in (".", "..") else Path(path).name
    while ending := next((e for e in _ENDINGS if name.endswith(e) and name != e), None):
        name = name.removesuffix(ending)
    part = split or (qrels if qrels and _NAME.fullmatch(qrels) and "." not in qrels else None)
    name = re.sub(r"[\s/=:#]+", "-", name)
    return f"{name}-{part}" if part else name


@dataclass(frozen=True, slots=True)
class LabelAnswer:
    """An entity as a label names it: by id, title or both. A grade above 0 says that it is relevant."""

    entity_id: str | None
    title: str | None
    grade: int = 1


@dataclass(frozen=True, slots=True)
class FileQuery:
    """A query as the files have it."""

    query_id: str  # id, unique in the set
    text: str  # the query, or the mention's own text
    answers: tuple[LabelAnswer, ...] = ()  # judged answers
    mention: Mention | None = None  # the mention in its context
    evidence: tuple[tuple[int, ...], ...] = ()  # sets of positions in `answers`
    is_nil: bool = False  # whether the label says that nothing answers
    document: str | None = None  # document that it is part of
    line: int = 0  # number of its first line


# Returns the entities an answer may mean; () if the index has none.
_Find = Callable[[LabelAnswer], tuple[str, ...]]


def find_answers(queries: Sequence[FileQuery], resolver: IndexResolver) -> tuple[LabelledQuery, ...]:
    """Return the labelled queries.

    An id is looked up first, then the title. The ids of a set are often not those of the index, and may by
    chance name other entities: if more of them contradict the titles beside them than agree, only titles
    count.
    """
    find = _look_up(queries, resolver)
    return tuple(_labelled(query, find) for query in queries)


def _look_up(queries: Sequence[FileQuery], resolver: IndexResolver) -> _Find:
    answers = [answer for query in queries for answer in query.answers]
    ids = list(dict.fromkeys(a.entity_id for a in answers if a.entity_id is not None))
    titles = list(dict.fromkeys(a.title for a in answers if a.title is not None))
    known_ids = dict(zip(ids, resolver.by_ids(ids), strict=True))
    known_titles = dict(zip(titles, resolver.by_titles(titles), strict=True))
    agree = contradict = 0
    for entity_id, title in dict.fromkeys((a.entity_id, a.title) for a in answers):
        if entity_id is None or title is None or known_ids[entity_id] is None or not known_titles[title]:
            continue
        if known_ids[entity_id] in known_titles[title]:
            agree += 1
        else:
            contradict += 1

    def find(answer: LabelAnswer) -> tuple[str, ...]:
        if answer.entity_id is not None and (contradict <= agree or answer.title is None):
            found = known_ids[answer.entity_id]
            if found is not None:
                return (found,)
        return known_titles[answer.title] if answer.title is not None else ()

    return find


def _labelled(query: FileQuery, find: _Find) -> LabelledQuery:
    gold: dict[str, int] = {}
    namesakes: dict[str, str] = {}
    chosen: list[str] = []
    for answer in query.answers:
        found = find(answer)
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
    return LabelledQuery(
        query_id=query.query_id,
        text=query.text,
        mention=query.mention,
        gold=gold,
        evidence=evidence,
        is_nil=query.is_nil,
        document=query.document,
        namesakes=namesakes,
    )


# A percent sign that looks like an encoded byte is encoded too, so that decoding is exact.
_ENCODED = re.compile(r"[\s\x00-\x1f\x7f-\x9f]|%(?=[0-9a-fA-F]{2})")


def encode_token(text: str) -> str:
    """Return a text with white space and control characters percent-encoded, as in "New%20York"."""
    return _ENCODED.sub(lambda match: quote(match.group(), safe=""), text)


def decode_token(token: str) -> str:
    """Return the text that `encode_token` was given; a token that it cannot have made stays as it is."""
    try:
        return unquote(token, errors="strict") if "%" in token else token
    except UnicodeDecodeError:  # bytes that are no UTF-8: a percent sign was one
        return token
