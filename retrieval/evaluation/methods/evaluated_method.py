"""Names the methods that are compared, reads their settings from the command line, and makes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from decoding.params import MAX_BEAM_SIZE, MAX_DISC_BEAM_SIZE, MAX_DRAWS, MAX_SAMPLES
from retrieval.errors import GenretError, InputError
from retrieval.evaluation.labelled_sets import LabelledQuery, RankedAnswers
from retrieval.types import DEFAULT_SHORTLIST_SIZE, MAX_SHORTLIST_SIZE, MAX_VECTOR_WEIGHT

if TYPE_CHECKING:
    from retrieval.evaluation.datasets.index_entities import EntityFinder
    from retrieval.evaluation.methods.model_free_methods import LexicalIndex
    from retrieval.retriever import Retriever
    from retrieval.vectors.vector_search import VectorProposer


class EvaluatedMethod(Protocol):
    """Answers labelled queries.

    Attributes:
        name: As the command line spells it.
        is_constrained: Whether it can only answer with entities of the index.
        is_random: Whether another seed gives other answers.
    """

    name: str
    is_constrained: bool
    is_random: bool

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[RankedAnswers]:
        """Return a ranking per query, in order; `report` gets the number answered so far."""


class MethodMaker:
    """Makes the methods of one retriever, which share what is made of its index.

    Args:
        retriever: Answers.
        k: Entities wanted per query.
        batch_size: Queries answered together.

    Attributes:
        titles: Entities of the index by id, title and alias.
    """

    def __init__(self, retriever: Retriever, k: int, batch_size: int) -> None:
        from retrieval.evaluation.datasets.index_entities import EntityFinder

        self._retriever = retriever
        self._k = k
        self._batch_size = batch_size
        self._lexical: LexicalIndex | None = None
        self.titles: EntityFinder = EntityFinder(retriever.index)

    def make(self, text: str) -> EvaluatedMethod:
        """Return the method that the command line calls `text`, one of `METHOD_FORMS`.

        Raises:
            InputError: there is no such method, its setting is out of range, or it needs evidence that the
                index lacks or that cannot be used.
            MissingExtraError: its library is not installed; names the extra.
            SourceError: its run file cannot be read.
        """
        from retrieval.evaluation.methods.generated import GeneratingMethod
        from retrieval.evaluation.methods.model_free_methods import (
            EvidenceMethod,
            LexicalMethod,
            NearestMethod,
            RunFileMethod,
            check_bm25s,
        )
        from retrieval.evaluation.methods.retriever_methods import RetrieverMethod

        spec = MethodSpec.parse(text)
        if spec.family in ("bm25", "bm25-shortlist"):
            check_bm25s()
        if spec.family == "vectors":
            vectors, index = self._vectors(spec), self._retriever.index
            return NearestMethod(spec.name, index, vectors, spec.size, self._k, self._batch_size)
        if spec.family == "evidence":
            self._check_evidence(spec)
            return EvidenceMethod(spec.name, self._retriever, spec.size, self._k, self._batch_size)
        few = spec.size or DEFAULT_SHORTLIST_SIZE
        if spec.family in ("shortlist", "auto") and self._retriever.index.num_entities > few:
            # Without evidence `auto` is its decoder: a report must not show that under another name.
            self._check_evidence(spec)
        if spec.family == "bm25":
            return LexicalMethod(spec.name, self._lexical_index, self._k, self._batch_size)
        if spec.file is not None:
            return RunFileMethod(spec.name, spec.file, self._k, self.titles)
        if spec.family in ("unconstrained", "trie"):
            return GeneratingMethod(spec, self._retriever, self._k, self._batch_size, self.titles)
        return RetrieverMethod(spec, self._retriever, self._k, self._batch_size, self._lexical_index)

    def _lexical_index(self) -> LexicalIndex:
        from retrieval.evaluation.methods.model_free_methods import LexicalIndex

        if self._lexical is None:
            self._lexical = LexicalIndex(self._retriever.index)
        return self._lexical

    def _check_evidence(self, spec: MethodSpec) -> None:
        """Refuse a method that needs evidence, or that would go without some that the index has.

        Raises:
            InputError: the index has none, or some of it cannot be used.
        """
        ranker = self._retriever.ranker
        try:
            ranker.require_all()
            ranker.require(self._retriever.index)
        except GenretError as error:
            raise InputError("method", f"{spec.name!r} needs evidence: {error}") from error

    def _vectors(self, spec: MethodSpec) -> VectorProposer:
        """Return what proposes entities.

        Raises:
            InputError: the index has none, or what it has cannot be used.
        """
        if (vectors := self._retriever.vectors) is None:
            why = self._retriever.ranker.problems.get("vectors", "the index has none")
            raise InputError("method", f"{spec.name!r} needs vectors: {why}")
        return vectors


DEFAULT_METHODS = (
    "unconstrained",
    "trie",
    "disc:1",
    "disc:2",
    "disc:3",
    "disc:4",
    "beam:10",
    "bm25-shortlist",
    "bm25",
)
# Those that are added where an index has evidence, and where that has vectors.
DEFAULT_EVIDENCE_METHODS = ("evidence", "shortlist", "auto")
DEFAULT_VECTOR_METHODS = ("vectors",)
DEFAULT_BM25_SHORTLIST = 50
MAX_BM25_SHORTLIST = 10_000
METHOD_FORMS = (
    "unconstrained[:BEAMS]",
    "trie",
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
# Which of them take which settings behind their number.
_SWITCHES = {"shortlist": ("weight",), "auto": ("weight", "disc")}


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """One method with its settings.

    Attributes:
        name: As it was given.
        family: "unconstrained", "trie", "disc", "beam", "exact", "evidence", "vectors", "shortlist", "auto",
            "bm25-shortlist", "bm25" or "run".
        beams: Beams of `unconstrained` (0: one sample instead) and `beam` (None: the larger of k and 10);
            prefixes per draw of `disc`.
        draws: `disc`: K.
        samples: `disc`: N.
        adaptive: `disc`: see `RetrieveRequest`.
        top_m: `disc`: likewise.
        size: `evidence`, `vectors`, `shortlist`, `auto`, `bm25-shortlist`: entities proposed; 0 with other
            methods, and with `auto` where the name has none: the library's.
        weight: `shortlist`, `auto`: weight of the similarity beside the log-probability; None: none, and with
            `auto` the order is the ranking's.
        decoder: `auto`: "disc"; None: the library's, which is beam search.
        file: `run`: its path.
    """

    name: str
    family: str
    beams: int | None = None
    draws: int = 1
    samples: int = 1
    adaptive: bool = False
    top_m: int | None = None
    size: int = 0
    weight: float | None = None
    decoder: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Read a method as the command line spells it.

        Raises:
            InputError: there is no such method, or a number is out of range; its field is "method".
        """
        if text in ("trie", "exact", "bm25"):
            return cls(text, text)
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
        words = switches.split("+")[1:]
        adaptive = "adaptive" in words
        tops = [word.removeprefix("top:") for word in words if word.startswith("top:")]
        if len(words) != len({word.split(":")[0] for word in words}):
            raise InputError("method", f"{text!r} says the same twice")
        prefixes = None if beams is None else _number(text, "BEAMS", beams, MAX_DISC_BEAM_SIZE)
        if adaptive and (tops or (prefixes or 1) > 1):
            raise InputError("method", f"{text!r}: adaptive excludes top and a number of BEAMS above 1")
        return cls(
            text,
            "disc",
            beams=prefixes,
            draws=_number(text, "K", draws, MAX_DRAWS),
            samples=1 if samples is None else _number(text, "SAMPLES", samples, MAX_SAMPLES),
            adaptive=adaptive,
            top_m=_number(text, "M", tops[0], 2**31 - 1) if tops else None,
        )

    @classmethod
    def _listed(cls, text: str, match: re.Match[str]) -> MethodSpec:
        family, digits, switches = match.groups()
        words = switches.split("+")[1:]
        names = [word.split(":")[0] for word in words]
        for name in names:
            if name not in _SWITCHES.get(family, ()):
                raise InputError("method", f"{text!r}: {family} takes no {name}")
        if len(names) != len(set(names)):
            raise InputError("method", f"{text!r} says the same twice")
        default, most = 0 if family == "auto" else DEFAULT_SHORTLIST_SIZE, MAX_SHORTLIST_SIZE
        if family == "bm25-shortlist":
            default, most = DEFAULT_BM25_SHORTLIST, MAX_BM25_SHORTLIST
        weights = [float(word.removeprefix("weight:")) for word in words if word.startswith("weight:")]
        if weights and weights[0] > MAX_VECTOR_WEIGHT:
            raise InputError(
                "method", f"{text!r}: W must be in [0, {MAX_VECTOR_WEIGHT:,g}], got {weights[0]:g}"
            )
        return cls(
            text,
            family,
            size=default if digits is None else _number(text, "N", digits, most),
            weight=weights[0] if weights else None,
            decoder="disc" if "disc" in names else None,
        )


def _number(text: str, name: str, digits: str, most: int) -> int:
    value = int(digits)
    if not 1 <= value <= most:
        raise InputError("method", f"{text!r}: {name} must be in [1, {most:,}], got {value}")
    return value
