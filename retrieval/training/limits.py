"""What fits into a model: how long a prompt and a title may be, and prompts cut to that length.

The bounds are those of serving (`retrieval.retriever`), so that training and measuring meet no prompt and no
title that the service would not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decoding import architectures
from decoding.errors import DecodingError
from decoding.language_model import LanguageModel
from retrieval.errors import InputError, ModelError
from retrieval.prompts import PromptTemplate
from retrieval.text import TextTokenizer

# Positions kept for the title behind a prompt, when the longest title is longer still; as in serving.
_MIN_ROOM = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """Positions of a model, None where the architecture sets no bound.

    Attributes:
        positions: Of prompt and title together; of the title alone for encoder-decoders.
        encoder_positions: Of the prompt of an encoder-decoder; not used for decoder-only models.
        is_encoder_decoder: Whether prompts go into an encoder.
    """

    positions: int | None = None
    encoder_positions: int | None = None
    is_encoder_decoder: bool = False

    @classmethod
    def of(cls, model: LanguageModel) -> Limits:
        """Return the limits of a model that is ready for decoding."""
        return cls(model.max_positions, model.max_prompt_tokens, model.is_encoder_decoder)

    @classmethod
    def of_checkpoint(cls, model: Any) -> Limits:
        """Return the limits of a `transformers.PreTrainedModel`, which is left as it is.

        Raises:
            ModelError: serving could not decode with it, or it does not say how a title begins.
        """
        try:
            architectures.check_supported(model.config)
            if not model.config.is_encoder_decoder:
                return cls(architectures.position_limit(model))
            before_title = len(architectures.decoder_prompt(model))
        except DecodingError as error:
            raise ModelError(str(error)) from error
        positions = architectures.position_limit(model)
        return cls(
            None if positions is None else positions - before_title,
            architectures.encoder_position_limit(model),
            True,
        )

    def prompt_tokens(self, longest_title: int) -> int | None:
        """Return how long a prompt may be before titles of up to `longest_title` tokens."""
        if self.is_encoder_decoder or self.positions is None:
            return self.encoder_positions
        return self.positions - min(longest_title, _MIN_ROOM, self.positions // 2)

    def room(self, prompt_tokens: int) -> int | None:
        """Return how many tokens may follow a prompt."""
        if self.positions is None:
            return None
        return self.positions - (0 if self.is_encoder_decoder else prompt_tokens)


def num_markup_tokens(template: PromptTemplate, tokenizer: TextTokenizer) -> int:
    """Return how many tokens of every prompt are the template's own."""
    return len(template.encode(tokenizer, ""))


def check_markup(template: PromptTemplate, tokenizer: TextTokenizer, limit: int) -> None:
    """Check that prompts of up to `limit` tokens have room for a query.

    Raises:
        InputError: the template's own tokens fill them.
    """
    markup = num_markup_tokens(template, tokenizer)
    if markup >= limit:
        raise InputError(
            "max_prompt_tokens",
            f"prompts may have {limit} tokens, but the template {template.name!r} alone has {markup}",
        )


def fit_prompt(template: PromptTemplate, tokenizer: TextTokenizer, text: str, limit: int | None) -> list[int]:
    """Return the prompt of a text; one of more than `limit` tokens loses the end of the text.

    What the template puts behind the text stays, since the model reads from it that a title is due.

    Args:
        template: The template; its own tokens must leave room (`check_markup`).
        tokenizer: The tokenizer.
        text: The query.
        limit: Most tokens, None for no bound.
    """
    ids = template.encode(tokenizer, text)
    if limit is None or len(ids) <= limit:
        return ids
    markup = template.encode(tokenizer, "")
    tail = 0
    while tail < len(markup) and markup[-1 - tail] == ids[-1 - tail]:
        tail += 1
    return [*ids[: limit - tail], *ids[len(ids) - tail :]]
