"""Where settings come from: a file, the environment, flags. Each makes a `Layer` of values with their origin.

A layer says what is wrong with its values and goes on, so that a user hears of every mistake at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrieval.errors import InputError
from service.configuration.config import IndexSpec, SchemaSpec
from service.configuration.kinds import WrongValueError
from service.configuration.sections import check_name
from service.configuration.settings import BY_PARAMETER, SETTINGS, Key, Setting


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from.

    Attributes:
        label: What a message about the value begins with: "--port", "genret.toml: server.port".
        short: The source alone: "--port", "genret.toml".
    """

    label: str
    short: str


@dataclass(frozen=True, slots=True)
class Given:
    """A value that someone gave, and where."""

    value: Any
    origin: Origin


@dataclass(slots=True)
class Layer:
    """What one source says.

    Attributes:
        values: Values by their key.
        names: The indexes, models and schemas it names, as (table, name), in its order, and where.
        problems: What is wrong with it, a line each.
    """

    values: dict[Key, Given] = field(default_factory=dict)
    names: dict[tuple[str, str], Origin] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put(self, key: Key, value: Any, origin: Origin) -> None:
        """Note a value; of two for one key the first is kept, and that is a problem."""
        if key in self.values:
            self.problems.append(f"{origin.label}: {_twice(key)}")
            return
        self.values[key] = Given(value, origin)

    def put_name(self, table: str, name: str, origin: Origin) -> None:
        """Note that an index, a model or a schema is named, after checking the name."""
        try:
            check_name(table, name)
        except InputError as error:
            self.problems.append(f"{origin.label}: {error.message}")
        self.names.setdefault((table, name), origin)


def flags(given: Mapping[str, object], index: str | None = None) -> Layer:
    """Read what stands on the command line.

    Args:
        given: Text of each flag by its parameter's name, a sequence of texts of repeated ones, a boolean
            of switches; flags that were not given are left out.
        index: The argument INDEX.
    """
    layer = Layer()
    if index is not None:
        _put_text(layer, BY_PARAMETER["index"], index, Origin("INDEX", "INDEX"))
    for setting in SETTINGS:
        if setting.parameter in given:
            _put(layer, setting, given[setting.parameter], Origin(setting.flag, setting.flag))
    return layer


def environment(variables: Mapping[str, str]) -> Layer:
    """Read the environment; a variable that is empty counts as not set.

    The values of a repeated flag are separated by blanks.
    """
    layer = Layer()
    for setting in SETTINGS:
        text = variables.get(setting.variable, "")
        if text:
            origin = Origin(f"{setting.variable}, for {setting.flag}", setting.variable)
            _put(layer, setting, text.split() if setting.repeated else text, origin)
    return layer


def _put(layer: Layer, setting: Setting, given: object, origin: Origin) -> None:
    if isinstance(given, bool):
        layer.put(setting.key, given, origin)
    elif isinstance(given, Sequence) and not isinstance(given, str):
        for text in given:
            _put_text(layer, setting, text, origin)
    else:
        _put_text(layer, setting, str(given), origin)


def _put_text(layer: Layer, setting: Setting, text: str, origin: Origin) -> None:
    key = setting.key
    try:
        if setting.repeated:
            name, text = _PAIRS[setting.parameter](text)
            key = setting.named(name)
            if setting.parameter not in _OF_INDEXES:
                layer.put_name(key[0], name, origin)
        elif key[0] == "models":
            layer.put_name(key[0], key[1], origin)
        layer.put(key, setting.kind.parse(text), origin)
    except InputError as error:
        layer.problems.append(f"{origin.label}: {error.message}")
    except WrongValueError as error:
        layer.problems.append(f"{origin.label}: {error}")


def _index_pair(text: str) -> tuple[str, str]:
    spec = IndexSpec.parse(text)
    return spec.name, str(spec.path)


def _schema_pair(text: str) -> tuple[str, str]:
    spec = SchemaSpec.parse(text)
    return spec.name, str(spec.path)


def _pair(field_name: str, form: str) -> Callable[[str], tuple[str, str]]:
    def parse(text: str) -> tuple[str, str]:
        name, separator, value = text.partition("=")
        if not (separator and name and value):
            raise InputError(field_name, f"expected {form}, got {text!r}")
        return name, value

    return parse


_PAIRS: dict[str, Callable[[str], tuple[str, str]]] = {
    "index": _index_pair,
    "schema": _schema_pair,
    "use_model": _pair("use_model", "INDEX=MODEL"),
    "encoder": _pair("encoder", "INDEX=ENCODER"),
    "add_model": _pair("add_model", "NAME=CHECKPOINT"),
}
# They say something of an index that is named elsewhere.
_OF_INDEXES = ("use_model", "encoder")


def _twice(key: Key) -> str:
    things = {
        "indexes": ("indexes", "PATH"),
        "schemas": ("schemas", "FILE"),
        "models": ("models", "CHECKPOINT"),
    }
    if len(key) >= 2 and key[-1] not in ("model", "encoder") and key[0] in things:
        many, place = things[key[0]]
        return f"two {many} are named {key[1]!r}; tell them apart with NAME={place}"
    return f"{'.'.join(key)} is given twice"
