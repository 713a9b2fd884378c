"""Rows of mentions that the model found and linked itself, as it wrote the text again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from retrieval.errors import GenretError, InputError
from retrieval.linking.answers import LinkAnswer, LinkCandidate, failure
from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.document import BadDocument, Document, Span
from retrieval.linking.mention_stream import PlacedMention, is_first_part
from retrieval.linking.options import LinkOptions, WorkerOptions
from retrieval.linking.row_maker import RowMaker
from retrieval.types import Mention

if TYPE_CHECKING:
    from retrieval.linking.generating.generator import Generated
    from retrieval.linking.generating.mention import GeneratedMention
    from retrieval.linking.generating.options import GenerateOptions
    from retrieval.retriever import Retriever


# What only the linking of mentions one by one looks at: its value where nothing is asked of it.
_REFUSED: dict[str, object] = {
    "candidates": "auto",
    "context_chars": None,
    "min_probability": None,
    "decoder": None,
    "shortlist_size": None,
    "vector_weight": None,
    "title_weight": None,
    "min_mass": None,
    "adaptive": False,
    "exact": False,
    "exact_budget": None,
    "length_penalty": 0.0,
    "aggregate": None,
}


class GeneratedRows:
    """Makes rows out of the links that a `MentionGenerator` writes.

    The entities of the title that was written are candidates. The model has said no more than the title: a
    candidate's probability is its share in it, P(e | title), and its log-probability is that of the title
    plus the log of the share. A text that failed has one row, which spans the part that was to be linked.

    Args:
        retriever: Index and model.
        options: How mentions are linked; of its methods, `auto` is `beam`, and `beam` with a beam size of 1
            is greedy.
        worker: Batch size.

    Raises:
        InputError: an option does not go with generated mentions, or does not fit the checkpoint.
    """

    def __init__(self, retriever: Retriever, options: LinkOptions, worker: WorkerOptions) -> None:
        from retrieval.linking.generating.generator import MentionGenerator

        self._options = options
        self._method = _method(options)
        self._generator = MentionGenerator(retriever, _generate_options(options, worker))
        self._index_digest = retriever.index.digest

    def link(
        self,
        documents: Iterable[Document | BadDocument],
        counts: LinkCounts,
        complain: Callable[[str], None],
        report: Callable[[LinkCounts], None],
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of every document that has any; see `DocumentLinker.link`."""
        maker = RowMaker(self._options, self._index_digest, counts, complain)
        for document, generated in self._generator.annotate_documents(documents):
            if isinstance(document, BadDocument):
                counts.num_bad_documents += 1
                complain(str(document))
                continue
            counts.num_documents += is_first_part(document)
            made = (maker.make(mention, answer) for mention, answer in self._answers(document, generated))
            if rows := [row for row in made if row is not None]:
                yield rows
            report(counts)

    def _answers(
        self, document: Document, generated: Generated
    ) -> Iterator[tuple[PlacedMention, LinkAnswer]]:
        if isinstance(generated, GenretError):
            whole = Span(document.begin, document.end)
            yield _placed(document, whole, ""), failure(generated, self._method)
            return
        for link in generated:
            yield _placed(document, Span(link.start, link.end), link.mention), self._answer(link)

    def _answer(self, link: GeneratedMention) -> LinkAnswer:
        candidates = tuple(
            LinkCandidate(entity.entity_id, entity.title, logprob, logprob, share)
            for entity, share in zip(link.entities, link.shares, strict=True)
            for logprob in (link.logprob + math.log(share),)
        )[: self._options.k]
        reason = "min_logprob" if link.is_nil else None
        return LinkAnswer(reason, link.title, candidates, method=self._method)


def _method(options: LinkOptions) -> str:
    """Return how texts are written."""
    if options.decoding is None:
        raise InputError("method", f"{options.method} does not go with generated mentions")
    return options.decoding


def _generate_options(options: LinkOptions, worker: WorkerOptions) -> GenerateOptions:
    from retrieval.linking.generating.options import GenerateOptions

    for name, unset in _REFUSED.items():
        if (value := getattr(options, name)) != unset:
            raise InputError(name, f"does not go with generated mentions, got {value!r}")
    method = _method(options)
    method = "greedy" if method == "beam" and options.beam_size == 1 else method
    made = GenerateOptions(
        prompt=options.prompt,
        method=method,
        seed=options.seed,
        min_logprob=options.min_logprob,
        filter=options.filter,
        batch_size=worker.batch_size,
    )
    return made if options.beam_size is None else replace(made, beam_size=options.beam_size)


def _placed(document: Document, span: Span, mention: str) -> PlacedMention:
    return PlacedMention(
        document.source,
        document.row,
        document.doc_id,
        document.place(span),
        Mention(mention),
        None,
        "generated",
    )
