"""What people ask a retriever: queries, mentions, JSON, scores of titles, one or many at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Unpack

from retrieval.answers.answerer import Answerer
from retrieval.answers.request_options import AnswerOptions
from retrieval.answers.types import AnswerResult, Schema
from retrieval.arguments import named, sequence
from retrieval.errors import InputError
from retrieval.limits import DEFAULT_BATCH_SIZE
from retrieval.prompts import CheckpointConfig
from retrieval.request_options import RequestOptions, with_options
from retrieval.score_types import ScoreRequest, ScoreResult
from retrieval.title_scores import ScoreReply
from retrieval.types import Mention, RetrievalResult, RetrieveRequest


class Questions(ABC):
    """The calls of a retriever that take texts and raise the first error.

    Attributes:
        config: Prompt templates and rendering of the checkpoint.
        answerer: Writes JSON.
        name: What schemas of JSON answers call the index, beside "titles".
    """

    config: CheckpointConfig
    answerer: Answerer
    name: str

    def retrieve(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        method: str = "auto",
        *,
        prompt: str | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        **options: Unpack[RequestOptions],
    ) -> list[RetrievalResult]:
        """Answer queries, in their order. See `RetrieveRequest` for the options.

        Raises:
            InputError: an option or a query is out of range, a query is too long for the model, or the
                filter does not fit the index.
            ModelError: the model returned broken logits.
        """
        texts = sequence("queries", queries, str)
        single = isinstance(queries, str)
        names = ["query"] if single else [f"queries[{i}]" for i in range(len(texts))]
        asked = with_options(k, method, prompt, options)
        requests = []
        for name, text in zip(names, texts, strict=True):
            with named("query", name):
                requests.append(replace(asked, query=text))
        return self._all_or_error(requests, names, batch_size)

    def link(
        self,
        mentions: Mention | Sequence[Mention],
        k: int = 1,
        method: str = "auto",
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        **options: Unpack[RequestOptions],
    ) -> list[RetrievalResult]:
        """Link mentions in context to entities, in their order, all with the same options.

        Raises:
            InputError: an option is out of range, a mention is empty or too long for the model, or the
                filter does not fit the index.
        """
        spans = sequence("mentions", mentions, Mention)
        single = isinstance(mentions, Mention)
        names = ["mention"] if single else [f"mentions[{i}]" for i in range(len(spans))]
        asked = with_options(k, method, None, options)
        requests = []
        for name, mention in zip(names, spans, strict=True):
            with named("mention", name):
                requests.append(self.mention_request(mention, asked))
        return self._all_or_error(requests, names, batch_size)

    def link_request(
        self, mention: Mention, k: int = 1, method: str = "auto", **options: Unpack[RequestOptions]
    ) -> RetrieveRequest:
        """Return the request that links one mention with the checkpoint's mention template.

        Raises:
            InputError: an option is out of range, or the mention is empty.
        """
        return self.mention_request(mention, with_options(k, method, None, options))

    def mention_request(self, mention: Mention, asked: RetrieveRequest) -> RetrieveRequest:
        """Return the request that links one mention as `asked`, whose query is a placeholder.

        Raises:
            InputError: the mention is empty.
        """
        if not mention.mention.strip():
            raise InputError("mention", "must not be empty")
        template = self.config.prompt(self.config.mention_prompt)
        request = replace(asked, query=template.mention_query(mention), prompt=template.name)
        if not request.proposals or request.shortlist_query is not None:
            return request
        return replace(request, shortlist_query=mention.mention)

    def score(
        self, query: str | Mention, titles: str | Iterable[str], *, prompt: str | None = None
    ) -> ScoreResult:
        """Score any titles behind a query, all in one pass of the model.

        Titles are tokenised as those of the index are, under the same text policy (NFC, single spaces).

        Args:
            query: The query text, or a mention, which is asked with the checkpoint's mention template.
            titles: From 1 to 10,000 texts, in the catalogue or not, or one.
            prompt: Name of the prompt template; None: the checkpoint's default. Not for a mention.

        Raises:
            InputError: the query or a title cannot be used; a title is named "titles[3]".
            ModelError: the model returned broken logits.
        """
        (reply,) = self.score_batch([self.score_request(query, titles, prompt)])
        if not isinstance(reply, ScoreResult):
            raise reply
        return reply

    def score_request(
        self, query: str | Mention, titles: str | Iterable[str], prompt: str | None = None
    ) -> ScoreRequest:
        """Return the request that `score` makes.

        Raises:
            InputError: the query or a title cannot be used, or a template is given for a mention.
        """
        texts = tuple(sequence("titles", titles, str))
        if not isinstance(query, Mention):
            return ScoreRequest(query, texts, prompt)
        if prompt is not None:
            raise InputError("prompt", f"is the checkpoint's mention template for a mention, got {prompt!r}")
        asked = self.mention_request(query, RetrieveRequest("-", method="beam"))
        return ScoreRequest(asked.query, texts, asked.prompt)

    def answer(
        self, query: str, schema: Schema | None = None, **options: Unpack[AnswerOptions]
    ) -> AnswerResult:
        """Answer one query with JSON that is valid under a schema; see `Answerer.answer_all` for several.

        Args:
            query: The query text.
            schema: A JSON Schema, as text or as `json.loads` reads one.
            **options: See `AnswerRequest`.

        Raises:
            SchemaRejectedError: the schema cannot be used; names keyword and JSON pointer.
            InputError: an option is out of range, the query is too long, or the answer does not fit.
            ModelError: the model returned broken logits.
        """
        return self.answerer.answer_all([query], schema, titles=self.name, **options)[0]

    @abstractmethod
    def score_batch(self, requests: Sequence[ScoreRequest]) -> list[ScoreReply]:
        """Score the titles of several requests together."""

    @abstractmethod
    def _all_or_error(
        self, requests: Sequence[RetrieveRequest], names: Sequence[str], batch_size: int
    ) -> list[RetrievalResult]:
        """Answer requests in batches; the first error is raised, with the name of its request."""
