"""What a method is, and how the command line names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from retrieval.errors import GenretError, InputError
from retrieval.evaluation.methods.spec import METHOD_FORMS, MethodSpec
from retrieval.evaluation.types import LabelledQuery, Ranking
from retrieval.request_checks import DEFAULT_SHORTLIST_SIZE

if TYPE_CHECKING:
    from retrieval.evaluation.catalogue import IndexTitles
    from retrieval.evaluation.methods.lexical import LexicalIndex
    from retrieval.retriever import Retriever
    from retrieval.vectors.shortlister import Shortlister

__all__ = ["METHOD_FORMS", "EvaluatedMethod", "MethodMaker", "make_method"]


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
    ) -> list[Ranking]:
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
        from retrieval.evaluation.catalogue import IndexTitles

        self._retriever = retriever
        self._k = k
        self._batch_size = batch_size
        self._lexical: LexicalIndex | None = None
        self.titles: IndexTitles = IndexTitles(retriever.index)

    def make(self, text: str) -> EvaluatedMethod:
        """Return the method that the command line calls `text`. Errors are those of `make_method`."""
        from retrieval.evaluation.methods.decoded import RetrieverMethod
        from retrieval.evaluation.methods.external import RunFileMethod
        from retrieval.evaluation.methods.generated import GeneratingMethod
        from retrieval.evaluation.methods.lexical import LexicalMethod, check_bm25s
        from retrieval.evaluation.methods.nearest import EvidenceMethod, NearestMethod

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
        from retrieval.evaluation.methods.lexical import LexicalIndex

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

    def _vectors(self, spec: MethodSpec) -> Shortlister:
        """Return what proposes entities.

        Raises:
            InputError: the index has none, or what it has cannot be used.
        """
        if (vectors := self._retriever.vectors) is None:
            why = self._retriever.ranker.problems.get("vectors", "the index has none")
            raise InputError("method", f"{spec.name!r} needs vectors: {why}")
        return vectors


def make_method(text: str, retriever: Retriever, k: int, batch_size: int) -> EvaluatedMethod:
    """Return the method that the command line calls `text`, one of `METHOD_FORMS`.

    Raises:
        InputError: there is no such method, its setting is out of range, or it needs evidence that the
            index lacks or that cannot be used.
        MissingExtraError: its library is not installed; names the extra.
        SourceError: its run file cannot be read.
    """
    return MethodMaker(retriever, k, batch_size).make(text)
