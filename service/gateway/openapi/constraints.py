"""What fields of requests may hold beyond their types. The servers enforce it; a test compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEMPERATURE = {"minimum": 0.01, "maximum": 100}
_NOT_BLANK = {"minLength": 1, "pattern": r"\S"}
_IDS = {"maxItems": 100_000}

# By message and field: keywords of JSON Schema.
CONSTRAINTS: Mapping[str, Mapping[str, Any]] = {
    "RetrieveRequest.query": _NOT_BLANK,
    "RetrieveRequest.k": {"minimum": 1, "maximum": 1000},
    "RetrieveRequest.beam_size": {"minimum": 1, "maximum": 1000},
    "RetrieveRequest.num_draws": {"minimum": 1, "maximum": 256},
    "RetrieveRequest.num_samples": {"minimum": 1, "maximum": 256},
    "RetrieveRequest.temperature": _TEMPERATURE,
    "RetrieveRequest.top_m": {"minimum": 1, "maximum": 2**31 - 1},
    "RetrieveRequest.min_mass": {"minimum": 0, "maximum": 1},
    "RetrieveRequest.exact_budget": {"minimum": 0, "maximum": 1_000_000},
    "RetrieveRequest.length_penalty": {"minimum": -4, "maximum": 4},
    "RetrieveRequest.deny_entity_ids": _IDS,
    "RetrieveRequest.shortlist_size": {"minimum": 1, "maximum": 2000},
    "RetrieveRequest.vector_weight": {"minimum": 0, "maximum": 1000},
    "RetrieveRequest.title_weight": {"minimum": 1e-6, "maximum": 1e6},
    "EntityIds.ids": _IDS,
    "Mention.mention": _NOT_BLANK,
    "AnswerRequest.query": _NOT_BLANK,
    "AnswerRequest.max_tokens": {"minimum": 1, "maximum": 65_536},
    "AnswerRequest.beam_size": {"minimum": 1, "maximum": 1000},
    "AnswerRequest.num_draws": {"minimum": 1, "maximum": 256},
    "AnswerRequest.temperature": _TEMPERATURE,
    "AnswerRequest.shortlist": {"minimum": 1, "maximum": 1000},
    "ScoreRequest.query": _NOT_BLANK,
    "ScoreRequest.titles": {"minItems": 1, "maxItems": 10_000},
}

# Fields that requests cannot do without.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "RetrieveRequest": ("query",),
    "Mention": ("mention",),
    "AnswerRequest": ("query",),
    "ScoreRequest": ("titles",),
    "RetrieveStreamRequest": ("request",),
}

# The options of mentions are those of a query, but for what every mention says itself.
LINK_OPTIONS = "LinkOptions"
LINK_OPTIONS_FIELD = "LinkRequest.options"
NO_LINK_OPTIONS = ("index", "query", "prompt_template")
