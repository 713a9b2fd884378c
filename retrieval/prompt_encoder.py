"""From a query to the tokens of its prompt, where the model can take them."""

from __future__ import annotations

import threading

from retrieval.errors import InputError
from retrieval.prompts import SCHEMA_PLACE, PromptTemplate
from retrieval.text import TextTokenizer

_MOST_KEPT, _LONGEST_KEPT = 256, 2000  # prompts, characters of their queries


class PromptEncoder:
    """Encodes prompts for one model. Can be used from several threads.

    Args:
        tokenizer: The model's tokenizer.
        vocab_size: Tokens the model knows.
        max_tokens: Longest prompt that leaves room for a title; None: no bound.
    """

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int, max_tokens: int | None) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._num_shared: dict[PromptTemplate, int] = {}
        self._lock = threading.Lock()
        self._kept: dict[tuple[PromptTemplate, str], list[int]] = {}

    def num_shared(self, template: PromptTemplate) -> int:
        """Return how many tokens the prompts of a template have in common, at their beginning."""
        if template not in self._num_shared:
            if len(self._num_shared) >= _MOST_KEPT:  # each schema makes a template of its own
                self._num_shared.clear()
            self._num_shared[template] = len(template.shared_tokens(self._tokenizer))
        return self._num_shared[template]

    def leaves_half(self, template: PromptTemplate) -> bool:
        """Whether what all prompts of a template begin with takes at most half of the model's positions."""
        return self._max_tokens is None or 2 * self.num_shared(template) <= self._max_tokens

    def encode(self, template: PromptTemplate, query: str) -> list[int]:
        """Return the token ids of a query in a template.

        Raises:
            InputError: there are none, too many, or one that the model does not know; its field is "query".
                It is "schema" where the one that the prompt shows leaves no room for a query.
        """
        with self._lock:
            kept = self._kept.pop((template, query), None) if self._kept else None
        if kept is not None:
            return kept
        prompt = template.encode(self._tokenizer, query)
        if not prompt:
            raise InputError("query", "gives no tokens with this prompt template")
        if max(prompt) >= self._vocab_size:
            raise InputError(
                "query",
                f"holds token {max(prompt)}, which the model does not know "
                f"(it has {self._vocab_size} tokens, its tokenizer {self._tokenizer.vocab_size})",
            )
        if self._max_tokens is not None and len(prompt) > self._max_tokens:
            markup = len(template.encode(self._tokenizer, ""))
            if template.schema and markup >= self._max_tokens:
                raise InputError(
                    "schema",
                    f"too long for the prompt template {template.name!r}, which shows it: {markup} tokens, "
                    f"the model takes at most {self._max_tokens}; name a template without {SCHEMA_PLACE}, "
                    "such as json-brief",
                )
            raise InputError(
                "query",
                f"too long: the prompt has {len(prompt)} tokens ({markup} are the template's), "
                f"the model takes at most {self._max_tokens}",
            )
        return prompt

    def keep(self, template: PromptTemplate, query: str, prompt: list[int]) -> None:
        """Keep a prompt for the next `encode` of the same query, to which it is handed.

        A server counts the tokens when a query comes, and needs them when its batch begins. The oldest
        is dropped where too many were never asked for, as calls were refused.
        """
        if len(query) > _LONGEST_KEPT:
            return
        with self._lock:
            self._kept[template, query] = prompt
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
