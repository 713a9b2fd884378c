"""The options that `Retriever.answer` takes beside its own arguments."""

from __future__ import annotations

from typing import TypedDict


class AnswerOptions(TypedDict, total=False):
    """Fields of `retrieval.answers.types.AnswerRequest`, which says what they mean and checks them."""

    schema_name: str | None
    method: str
    max_tokens: int
    temperature: float
    seed: int | None
    beam_size: int
    num_draws: int
    whitespace: str
    property_order: str
    formats: str
    extra_properties: str
    shortlist: int | None
    forced_spans: bool
    prompt: str | None
