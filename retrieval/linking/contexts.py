"""How a mention is put to the model: the text around it, and how much of that the model can take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from retrieval.errors import InputError
from retrieval.linking.options import LinkOptions
from retrieval.request_options import with_options
from retrieval.types import Mention, RetrieveRequest

if TYPE_CHECKING:
    from retrieval.prompts import CheckpointConfig


class MentionContexts:
    """Makes requests out of spans, in the words of one prompt template.

    The context is cut at exactly the template's width, in the middle of a word too: that is what
    `Retriever.link` does and what a model was taught with `genret train --mentions`.

    Args:
        config: Prompt templates of the checkpoint.
        options: Name of the template, width of the context, and what every mention is asked with.

    Raises:
        InputError: there is no such template.
    """

    def __init__(self, config: CheckpointConfig, options: LinkOptions) -> None:
        template = config.prompt(config.mention_prompt if options.prompt is None else options.prompt)
        if options.context_chars is not None:
            template = replace(template, context_chars=options.context_chars)
        self._template = template
        self._asks_evidence = options.asks_evidence
        self._asked = with_options(
            options.k, options.method, template.name, {**options.request_options(), "seed": _seed(options)}
        )

    def around(self, text: str, start: int, end: int) -> Mention:
        """Return a span with as much of the text around it as the template shows."""
        width = self._template.context_chars
        return Mention(text[start:end], text[max(0, start - width) : start], text[end : end + width])

    def query(self, mention: Mention) -> str:
        """Return what the model reads of a mention: two that have the same query have the same answer."""
        query = self._template.mention_query(mention)
        return query.lower() if self._template.lowercase else query

    def request(self, mention: Mention, allow_ids: tuple[str, ...] | None = None) -> RetrieveRequest:
        """Return the request that links a mention.

        Raises:
            InputError: the mention is empty.
        """
        if not mention.mention.strip():
            raise InputError("mention", "must not be empty")
        query = self._template.mention_query(mention)
        asked = replace(self._asked, query=query)
        if self._asks_evidence:
            asked = replace(asked, shortlist_query=mention.mention)
        return asked if allow_ids is None else replace(asked, allow_ids=allow_ids)

    def narrowed(
        self, mention: Mention, request: RetrieveRequest, check: Callable[[RetrieveRequest], object]
    ) -> RetrieveRequest:
        """Return a request that the model refused with as much context as it takes.

        Args:
            mention: The mention and its context.
            request: What was refused.
            check: Raises an `InputError` where a request cannot be taken.

        Raises:
            InputError: it cannot be taken without any context either.
        """
        fitting = self._cut(mention, request, 0)
        check(fitting)
        least, most = 0, max(len(mention.left), len(mention.right))  # `least` fits
        while least + 1 < most:
            width = (least + most) // 2
            wider = self._cut(mention, request, width)
            try:
                check(wider)
            except InputError:
                most = width
            else:
                least, fitting = width, wider
        return fitting

    def _cut(self, mention: Mention, request: RetrieveRequest, width: int) -> RetrieveRequest:
        left = mention.left[-width:] if width else ""
        query = self._template.mention_query(Mention(mention.mention, left, mention.right[:width]))
        return replace(request, query=query)


def _seed(options: LinkOptions) -> int | None:
    return options.seed if options.decoding == "disc" else None
