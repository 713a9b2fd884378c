"""An entity linker for spaCy, `genret_linker`: links the entities that a pipeline has found before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from genret.retrieval.arguments import check_count, number
from genret.retrieval.errors import InputError, MissingExtraError
from genret.retrieval.types import Candidate, Mention, RetrievalResult
from genret.service.adapters.entity_source import EntitySource, asked, metadata_of

try:
    from spacy.language import Language
    from spacy.pipeline import Pipe
    from spacy.tokens import Doc, Span
    from spacy.util import minibatch
except ModuleNotFoundError as error:
    raise MissingExtraError("spacy", "spacy") from error

_EXTENSIONS = ("genret_title", "genret_probability", "genret_candidates")
_DOCS = 64  # read ahead by `pipe`, if spaCy names no number


@Language.factory(
    "genret_linker",
    requires=["doc.ents"],
    assigns=["doc.ents", "token.ent_kb_id", *(f"span._.{name}" for name in _EXTENSIONS)],
)
class SpacyLinker(Pipe):
    """Sets `kb_id_` of every entity, and three values of its `Span._`.

    `genret_title` and `genret_probability` are of the best candidate, `genret_candidates` are all of them,
    with their numbers and columns. A probability is the candidate's own, or with `beam`, which has none, that
    of the model, P(e | q).

    Args:
        nlp: The pipeline.
        name: Name in the pipeline.
        index, model, address, connection: What answers, as of `EntitySource`, but for open retrievers.
        k: Candidates wanted.
        method: Name of the method.
        options: Further options of every request, as of `RetrieveRequest`.
        min_probability: An entity whose best candidate has less is NIL; None: only one without candidates.
        context_chars: Most characters on either side that are sent; the prompt's template may show fewer.
        labels_discard: Entities with these labels are left as they are.
        nil: The `kb_id_` of an entity that is not in the index.

    Raises:
        InputError: an argument cannot be used.
    """

    def __init__(
        self,
        nlp: Language,
        name: str,
        index: str | None = None,
        model: str | None = None,
        address: str | None = None,
        connection: dict[str, Any] = {},  # noqa: B006  # spaCy writes defaults to its files, and not None
        k: int = 1,
        method: str = "auto",
        options: dict[str, Any] = {},  # noqa: B006
        min_probability: float | None = None,
        context_chars: int = 1000,
        labels_discard: list[str] = [],  # noqa: B006
        nil: str = "NIL",
    ) -> None:
        if min_probability is not None:
            number("min_probability", min_probability, 0, 1)
        check_count("context_chars", context_chars)
        if isinstance(labels_discard, str):
            raise InputError("labels_discard", f"must be a list of labels, got {labels_discard!r}")
        if "prompt" in options:
            raise InputError("prompt", "is the checkpoint's own for mentions, and cannot be chosen")
        self.source, self.name = EntitySource(index, model, address, connection), name
        self.options = {"k": k, "method": method, **options}
        asked("-", self.options)
        self.min_probability, self.context_chars = min_probability, context_chars
        self.labels_discard, self.nil = frozenset(labels_discard), nil
        for extension in _EXTENSIONS:
            if not Span.has_extension(extension):
                Span.set_extension(extension, default=None)

    def __call__(self, doc: Doc) -> Doc:
        """Link the entities of one document."""
        handle = self.get_error_handler()
        try:
            self._link([doc])
        except Exception as error:
            handle(self.name, self, [doc], error)
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = _DOCS) -> Iterator[Doc]:
        """Link the entities of documents, those of a batch together."""
        handle = self.get_error_handler()
        for docs in minibatch(stream, size=batch_size):  # type: ignore[no-untyped-call]
            try:
                self._link(docs)
            except Exception as error:
                handle(self.name, self, docs, error)
            else:
                yield from docs

    def _link(self, docs: Sequence[Doc]) -> None:
        entities = [ent for doc in docs for ent in doc.ents if ent.label_ not in self.labels_discard]
        if not entities:
            return
        mentions = [self._mention(ent) for ent in entities]
        for ent, found in zip(entities, self.source.link(mentions, self.options), strict=True):
            self._annotate(ent, found)

    def _mention(self, ent: Span) -> Mention:
        text, start, end, width = ent.doc.text, ent.start_char, ent.end_char, self.context_chars
        return Mention(text[start:end], text[max(0, start - width) : start], text[end : end + width])

    def _annotate(self, ent: Span, found: RetrievalResult) -> None:
        best = found.candidates[0] if found.candidates else None
        if (
            best is not None
            and self.min_probability is not None
            and _probability(best) < self.min_probability
        ):
            best = None
        for token in ent:
            token.ent_kb_id_ = self.nil if best is None else best.entity_id
        ent._.genret_title = None if best is None else best.title
        ent._.genret_probability = None if best is None else _probability(best)
        ent._.genret_candidates = [metadata_of(one) for one in found.candidates]


def _probability(candidate: Candidate) -> float:
    own = candidate.probability
    return math.exp(candidate.logprob) if own is None else own
