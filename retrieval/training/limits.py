"""The limits of serving (`retrieval.limits`) for a model in training, and prompts cut to them.

Training and measuring so meet no prompt and no title that the service would not.
"""

from __future__ import annotations

from typing import Any

from decoding import architectures
from decoding.errors import DecodingError
from retrieval.errors import InputError, ModelError
from retrieval.limits import Limits
from retrieval.prompts import PromptTemplate
from retrieval.text import TextTokenizer


def limits_of_checkpoint(model: Any) -> Limits:
    """Return the limits of a `transformers.PreTrainedModel`, which is left as it is.

    Raises:
        ModelError: serving could not decode with it, or it does not say how a title begins.
    """
    try:
        architectures.check_supported(model.config)
        if not model.config.is_encoder_decoder:
            return Limits(architectures.position_limit(model))
        before_title = len(architectures.decoder_prompt(model))
    except DecodingError as error:
        raise ModelError(str(error)) from error
    positions = architectures.position_limit(model)
    return Limits(
        None if positions is None else positions - before_title,
        architectures.encoder_position_limit(model),
        True,
    )


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
