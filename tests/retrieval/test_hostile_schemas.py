"""Small schemas that would keep a thread busy for hours, or fail as a bug: each is refused within seconds."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from retrieval import Retriever
from retrieval.errors import InputError
from tests.checkpoints import make_checkpoint, make_index


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    return Retriever.open(make_index(tmp_path_factory.mktemp("index"), checkpoint), checkpoint)


def _fan(levels: int) -> dict[str, Any]:
    """What the first definition asks for is asked 2^levels times."""
    defs: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(levels)
    }
    return {"$defs": {**defs, f"d{levels}": {"type": "boolean"}}, "$ref": "#/$defs/d0"}


def _chain(length: int) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"d{n}": {"type": "array", "items": {"$ref": f"#/$defs/d{n + 1}"}, "minItems": 1}
        for n in range(length)
    }
    return {"$defs": {**defs, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ('{"type":"array","minItems":1000000000}', "max_tokens"),
        ('{"type":"array","minItems":1000000,"items":{"type":"string"}}', "max_tokens"),
        ('{"type":"object","minProperties":1000000000}', "schema"),
        ('{"type":"object","minProperties":20}', "schema"),
        ('{"type":"array","uniqueItems":true,"minItems":50,"items":{"type":"integer"}}', "schema"),
        ('{"const":1e99999999999999999999}', "schema"),
        ('{"$ref":"#/allOf/' + "9" * 5000 + '","allOf":[true]}', "schema"),
        (json.dumps(_fan(40)), "schema"),
        (json.dumps(_chain(8000)), "schema"),
    ],
)
def test_it_is_refused_in_time(retriever: Retriever, schema: str, field: str) -> None:
    begun = time.thread_time()
    with pytest.raises(InputError) as caught:
        retriever.answer("who wrote hamlet", schema, max_tokens=60)
    assert caught.value.field == field
    assert time.thread_time() - begun < 15  # seconds; without the limits: hours


def test_a_schema_that_asks_twice_is_answered(retriever: Retriever) -> None:
    assert isinstance(retriever.answer("who wrote hamlet", _fan(3), max_tokens=60).value, bool)
