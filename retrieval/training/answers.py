"""Teaching a model to write its titles inside JSON answers.

A model that has only ever written bare titles is lost behind `{"title": "`: what it knows of a query does not
reach a place it has never seen. Some of its examples therefore ask for a document, in words of their own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

from retrieval.prompts import CheckpointConfig

# What the template for answers says behind the query, where a checkpoint was taught with one of its own.
_AS_JSON = " as json"
_NAME = "json"
_TITLE_KEYS = ("title", "name", "entity", "answer", "subject", "result")
_KIND_KEYS = ("kind", "type", "category")
# Shares of documents with a kind, where there is one, and of those that call the title "title".
_WITH_KIND = 0.5
_PLAIN_KEYS = 0.6


def with_answers(config: CheckpointConfig) -> CheckpointConfig:
    """Return a config with a template for JSON answers beside those that the checkpoint was taught with."""
    default = config.prompt(None)
    if config.answer_prompt is not None or config.is_default_built_in:
        return config
    template = replace(default, name=_NAME, suffix=_AS_JSON + default.suffix)
    return replace(config, prompts={**config.prompts, _NAME: template}, answer_prompt=_NAME)


def document_schema(document: str) -> str:
    """Return the schema that a prompt shows for a document of `answer_document`."""
    properties = {name: {"type": "string"} for name in json.loads(document)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return json.dumps(schema, separators=(",", ":"))


def answer_document(title: str, kind: str, random: Random) -> str:
    """Return a JSON document with a title in it, and with what kind of thing it is where that is known."""
    plain = random.random() < _PLAIN_KEYS
    document = {_TITLE_KEYS[0] if plain else random.choice(_TITLE_KEYS): title}
    if kind and random.random() < _WITH_KIND:
        document[_KIND_KEYS[0] if plain else random.choice(_KIND_KEYS)] = kind
    return json.dumps(document, ensure_ascii=False)
