"""Parses the names of the methods that are compared, and makes the methods."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from genret.decoding.params import MAX_BEAM_SIZE, MAX_DISC_BEAM_SIZE, MAX_DRAWS, MAX_SAMPLES
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, RankedAnswers, RankedEntity
from genret.retrieval.types import DEFAULT_SHORTLIST_SIZE, MAX_SHORTLIST_SIZE, MAX_VECTOR_WEIGHT

if TYPE_CHECKING:
    from genret.retrieval.evaluation.datasets.index_entities import EntityFinder
    from genret.retrieval.evaluation.methods.model_free_methods import LexicalIndex
    from genret.retrieval.retriever import Retriever
    from genret.retrieval.vectors.vector_search import VectorProposer


Answered = Callable[[int], None]  # is told how many queries have been answered so far


class EvaluatedMethod(Protocol):
    """A method that answers labelled queries."""

    name: str  # name as the command line spells it
    is_constrained: bool  # whether it can only answer with entities of the index
    is_random: bool  # whether another seed gives other answers

    def answer(self, queries: Sequence[LabelledQuery], seed: int, report: Answered) -> list[RankedAnswers]:
        """Return a ranking per query, in order."""


class MethodMaker:
    """Makes the methods of one retriever, which share what is computed from its index.

    Every method answers with `k` entities at most, to `batch_size` queries at a time. `titles` finds entities
    of the index by id, title and alias.
    """

    def __init__(self, retriever: Retriever, k: int, batch_size: int) -> None:
        from genret.retrieval.evaluation.datasets.index_entities import EntityFinder

        self.retriever = retriever
        self.k = k
        self.batch_size = batch_size
        self.titles: EntityFinder = EntityFinder(retriever.index)

    def make(self, text: str) -> EvaluatedMethod:
        """Return the method with this name, of one of the `METHOD_FORMS`.

        An InputError says that there is none, that its setting is out of range, or that it needs evidence
        that the index lacks or that cannot be used.
        """
        from genret.retrieval.evaluation.methods.generated import GeneratingMethod
        from genret.retrieval.evaluation.methods.model_free_methods import (
            ModelFreeMethod,
            RunFileMethod,
            by_evidence,
            by_vectors,
        )
        from genret.retrieval.evaluation.methods.retriever_methods import RetrieverMethod

        spec, index = MethodSpec.parse(text), self.retriever.index
        needs_evidence = spec.family == "evidence"
        if spec.family in ("shortlist", "auto"):
            # Without evidence `auto` is its decoder: a report must not show that under another name.
            needs_evidence = index.num_entities > (spec.size or DEFAULT_SHORTLIST_SIZE)
        if needs_evidence:
            self._check_evidence(spec)
        match spec.family:
            case "vectors":
                ask = by_vectors(index, self._vectors(spec), spec.size, self.k)
            case "evidence":
                ask = by_evidence(self.retriever, spec.size, self.k)
            case "bm25":
                return ModelFreeMethod(spec.name, lambda q: self.lexical.propose(q, self.k), self.batch_size)
            case "run":
                return RunFileMethod(spec.name, spec.file or "", self.k, self.titles)
            case "unconstrained" | "trie" | "greedy":
                return GeneratingMethod(spec, self)
            case _:
                return RetrieverMethod(spec, self)
        return ModelFreeMethod(spec.name, ask, self.batch_size)

    @cached_property
    def lexical(self) -> LexicalIndex:
        """The BM25 index, made on first use."""
        from genret.retrieval.evaluation.methods.model_free_methods import LexicalIndex

        return LexicalIndex(self.retriever.index)

    def _check_evidence(self, spec: MethodSpec) -> None:
        """Refuse a method that needs evidence, or that would go without some that the index has."""
        ranker = self.retriever.ranker
        try:
            ranker.require_all()
            ranker.require(self.retriever.index)
        except GenretError as error:
            raise InputError("method", f"{spec.name!r} needs evidence: {error}") from error

    def _vectors(self, spec: MethodSpec) -> VectorProposer:
        if (vectors := self.retriever.vectors) is None:
            why = self.retriever.ranker.problems.get("vectors", "the index has none")
            raise InputError("method", f"{spec.name!r} needs vectors: {why}")
        return vectors


MethodAnswer = tuple[RankedEntity, ...] | str  # best first, or the error


def timed_answers(
    queries: Sequence[LabelledQuery], ask: Callable[[], Iterable[MethodAnswer]]
) -> list[RankedAnswers]:
    """Return the rankings of a batch; every query is given its share of the time that `ask` takes."""
    started = time.perf_counter()
    answers = list(ask())
    seconds = (time.perf_counter() - started) / len(queries)
    return [
        RankedAnswers(query.query_id, (), seconds, error=answer)
        if isinstance(answer, str)
        else RankedAnswers(query.query_id, answer, seconds)
        for query, answer in zip(queries, answers, strict=True)
    ]


# Added to the methods asked by default where an index has evidence, and where that has vectors.
DEFAULT_EVIDENCE_METHODS = ("evidence", "shortlist", "auto")
DEFAULT_VECTOR_METHODS = ("vectors",)
DEFAULT_BM25_SHORTLIST = 50
MAX_BM25_SHORTLIST = 10_000
METHOD_FORMS = (
    "unconstrained[:BEAMS]",
    "trie",
    "greedy",
    "disc:K[xBEAMS][/SAMPLES][+adaptive][+top:M]",
    "beam[:BEAMS]",
    "exact",
    "evidence[:N]",
    "vectors[:N]",
    "shortlist[:N][+weight:W]",
    "auto[:N][+weight:W][+disc]",
    "bm25-shortlist[:N]",
    "bm25",
    "run:FILE",
)

_DISC = re.compile(r"disc:(\d+)(?:x(\d+))?(?:/(\d+))?((?:\+(?:adaptive|top:\d+))*)")
_BEAMS = re.compile(r"(unconstrained|beam)(?::(\d+))?")
_LISTED = re.compile(
    r"(evidence|vectors|shortlist|auto|bm25-shortlist)(?::(\d+))?((?:\+(?:disc|weight:\d+(?:\.\d+)?))*)"
)
# The settings behind the number, by family.
_SWITCHES = {"shortlist": ("weight",), "auto": ("weight", "disc")}


class MethodSpec(NamedTuple):
    """One method with its settings."""

    name: str  # name as it was given
    # "unconstrained", "trie", "greedy", "disc", "beam", "exact", "evidence", "vectors", "shortlist",
    # "auto", "bm25-shortlist", "bm25" or "run"
    family: str
    # Beams of `unconstrained` and `trie` (None: one sample), `greedy` (1) and `beam` (None: the larger of k
    # and 10); prefixes per draw of `disc`
    beams: int | None = None
    draws: int = 1  # draws per sample of `disc`, K
    samples: int = 1  # samples of `disc`, N
    adaptive: bool = False  # option of `disc`, see `RetrieveRequest`
    top_m: int | None = None  # option of `disc`, see `RetrieveRequest`
    # Entities proposed by methods with `:N`; 0 for others, and for `auto` without a number: the library's
    size: int = 0
    # Weight of the similarity beside the log-probability (`shortlist`, `auto`); None: 0 for `shortlist`,
    # the ranking's order for `auto`
    weight: float | None = None
    decoder: str | None = None  # decoder of `auto`: "disc"; None: the library's, which is beam search
    file: str | None = None  # path of `run`

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Read a method as the command line spells it; an InputError about "method" names what is wrong."""
        if text in ("trie", "greedy", "exact", "bm25"):
            return cls(text, text, beams=1 if text == "greedy" else None)
        if text.startswith("run:") and text != "run:":
            return cls(text, "run", file=text.removeprefix("run:"))
        if match := _DISC.fullmatch(text):
            return cls._disc(text, match)
        if match := _BEAMS.fullmatch(text):
            family, digits = match.groups()
            beams = None if digits is None else _number(text, "BEAMS", digits, MAX_BEAM_SIZE)
            return cls(text, family, beams=beams)
        if match := _LISTED.fullmatch(text):
            return cls._listed(text, match)
        raise InputError("method", f"expected one of {', '.join(METHOD_FORMS)}; got {text!r}")

    @classmethod
    def _disc(cls, text: str, match: re.Match[str]) -> MethodSpec:
        draws, beams, samples, switches = match.groups()
        given = _parse_switches(text, switches)
        prefixes = None if beams is None else _number(text, "BEAMS", beams, MAX_DISC_BEAM_SIZE)
        adaptive, top = "adaptive" in given, given.get("top")
        if adaptive and (top or (prefixes or 1) > 1):
            raise InputError("method", f"{text!r}: adaptive excludes top and a number of BEAMS above 1")
        return cls(
            text,
            "disc",
            beams=prefixes,
            draws=_number(text, "K", draws, MAX_DRAWS),
            samples=1 if samples is None else _number(text, "SAMPLES", samples, MAX_SAMPLES),
            adaptive=adaptive,
            top_m=None if top is None else _number(text, "M", top, 2**31 - 1),
        )

    @classmethod
    def _listed(cls, text: str, match: re.Match[str]) -> MethodSpec:
        family, digits, switches = match.groups()
        given = _parse_switches(text, switches)
        for name in given:
            if name not in _SWITCHES.get(family, ()):
                raise InputError("method", f"{text!r}: {family} takes no {name}")
        default, most = 0 if family == "auto" else DEFAULT_SHORTLIST_SIZE, MAX_SHORTLIST_SIZE
        if family == "bm25-shortlist":
            default, most = DEFAULT_BM25_SHORTLIST, MAX_BM25_SHORTLIST
        weight = float(given["weight"]) if "weight" in given else None
        if weight is not None and weight > MAX_VECTOR_WEIGHT:
            raise InputError("method", f"{text!r}: W must be in [0, {MAX_VECTOR_WEIGHT:,g}], got {weight:g}")
        return cls(
            text,
            family,
            size=default if digits is None else _number(text, "N", digits, most),
            weight=weight,
            decoder="disc" if "disc" in given else None,
        )


def _parse_switches(text: str, switches: str) -> dict[str, str]:
    """Return name -> value of "+name:value+name", each name once."""
    words = switches.split("+")[1:]
    given = dict(word.partition(":")[::2] for word in words)
    if len(given) != len(words):
        raise InputError("method", f"{text!r} says the same twice")
    return given


def _number(text: str, name: str, digits: str, most: int) -> int:
    value = int(digits)
    if not 1 <= value <= most:
        raise InputError("method", f"{text!r}: {name} must be in [1, {most:,}], got {value}")
    return value
