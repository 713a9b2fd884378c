"""Nine classes of small schemas, as applications ask for them, and instances of each."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_WORDS = [
    *("amber", "river", "northern", "quiet", "engine", "seven", "paper"),
    *("window", "Lisbon", "orchard", "silver", "report", "winter", "station"),
    *("garden", "violet", "harbour", "method", "copper", "lantern"),
]


@dataclass(frozen=True, slots=True)
class SchemaClass:
    """A schema and a way to make instances of it."""

    name: str
    schema: dict[str, Any]
    instance: Callable[[random.Random], Any]

    @property
    def text(self) -> str:
        """The schema as JSON text."""
        return json.dumps(self.schema)

    def instances(self, count: int, seed: int = 1) -> list[Any]:
        """Return some instances, the same for the same seed."""
        chosen = random.Random(f"{self.name}/{seed}")
        return [self.instance(chosen) for _ in range(count)]


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


_TEXT = {"type": "string"}
_INTEGER = {"type": "integer"}
_COLOURS = ["red", "green", "blue", "yellow", "black", "white"]
_FLAGS = ("ready", "checked", "shipped", "paid", "closed")
_STATES = ["open", "in progress", "blocked", "done"]


def _words(chosen: random.Random, least: int = 1, most: int = 4) -> str:
    return " ".join(chosen.choice(_WORDS) for _ in range(chosen.randint(least, most)))


def _person(chosen: random.Random) -> dict[str, Any]:
    return {"name": _words(chosen, 2, 3), "age": chosen.randint(1, 99), "active": chosen.random() < 0.5}


def _nested(chosen: random.Random) -> dict[str, Any]:
    street, city, code = _words(chosen), _words(chosen, 1, 1), str(chosen.randint(10000, 99999))
    address = {"street": street, "city": city, "code": code}
    return {"id": chosen.randint(1, 10**6), "user": {"name": _words(chosen, 2, 2), "address": address}}


def _ticket(chosen: random.Random) -> dict[str, Any]:
    return {
        "id": chosen.randint(1, 10**6),
        "title": _words(chosen, 2, 6),
        "state": chosen.choice(_STATES),
        "colour": chosen.choice(_COLOURS),
        "size": chosen.choice(["S", "M", "L", "XL"]),
        "priority": chosen.choice(["low", "normal", "high"]),
        "kind": chosen.choice(["bug", "feature", "question"]),
        "score": round(chosen.uniform(-10, 10), 2),
        "open": chosen.random() < 0.5,
        "note": _words(chosen, 3, 9),
    }


def _enums(chosen: random.Random) -> dict[str, Any]:
    return {f"choice{i}": chosen.choice(_COLOURS) for i in range(5)}


def _flags(chosen: random.Random) -> dict[str, Any]:
    return {name: chosen.choice([True, False, None]) for name in _FLAGS}


def _some(chosen: random.Random) -> dict[str, Any]:
    return {f"field{i}": _words(chosen) for i in range(10) if chosen.random() < 0.5}


def _tree(chosen: random.Random, depth: int = 3) -> dict[str, Any]:
    children = [_tree(chosen, depth - 1) for _ in range(chosen.randint(0, 2))] if depth else []
    return {"value": chosen.randint(0, 99), "children": children}


_PERSON = _object({"name": _TEXT, "age": _INTEGER, "active": {"type": "boolean"}})
_PLACE = _object({"street": _TEXT, "city": _TEXT, "code": _TEXT})
_LEAVES = {"type": "array", "items": {"$ref": "#/$defs/node"}}

CLASSES: tuple[SchemaClass, ...] = (
    SchemaClass("simple3", _PERSON, _person),
    SchemaClass(
        "nested2", _object({"id": _INTEGER, "user": _object({"name": _TEXT, "address": _PLACE})}), _nested
    ),
    SchemaClass(
        "array_objs", {"type": "array", "items": _PERSON}, lambda chosen: [_person(chosen) for _ in range(10)]
    ),
    SchemaClass(
        "complex10",
        _object(
            {
                "id": _INTEGER,
                "title": _TEXT,
                "state": {"enum": _STATES},
                "colour": {"enum": _COLOURS},
                "size": {"enum": ["S", "M", "L", "XL"]},
                "priority": {"enum": ["low", "normal", "high"]},
                "kind": {"enum": ["bug", "feature", "question"]},
                "score": {"type": "number"},
                "open": {"type": "boolean"},
                "note": _TEXT,
            }
        ),
        _ticket,
    ),
    SchemaClass("enum5", _object({f"choice{i}": {"enum": _COLOURS} for i in range(5)}), _enums),
    SchemaClass("freetext", _object({"text": _TEXT}), lambda chosen: {"text": _words(chosen, 40, 60)}),
    SchemaClass("boolnull", _object({name: {"type": ["boolean", "null"]} for name in _FLAGS}), _flags),
    SchemaClass("optional10", _object({f"field{i}": _TEXT for i in range(10)}, required=[]), _some),
    SchemaClass(
        "tree",
        {"$defs": {"node": _object({"value": _INTEGER, "children": _LEAVES})}, "$ref": "#/$defs/node"},
        _tree,
    ),
)
