"""Reads settings from flags, the environment and TOML files, and writes a configuration as TOML.

Each source makes a `Layer` of values with their origin, and collects its errors, so that a user sees every
mistake at once. A written configuration, read again, gives the same one.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from genret.retrieval.errors import InputError, SourceError, nearest
from genret.service.configuration.kinds import Checkpoint, WrongValueError, described
from genret.service.configuration.server_config import ServerConfig, check_name, named_twice, read_text
from genret.service.configuration.settings import (
    BY_KEY,
    BY_PARAMETER,
    NAMED_TABLES,
    SETTINGS,
    Key,
    Setting,
    find,
    settings_of,
)


class Origin(NamedTuple):
    """The source of a value: `label` begins messages ("genret.toml: server.port"), `short` is it alone."""

    label: str
    short: str


@dataclass(slots=True)
class Layer:
    """The settings of one source: values and origins by key, names (table, name) in order, and its errors."""

    values: dict[Key, Any] = field(default_factory=dict)
    origins: dict[Key, Origin] = field(default_factory=dict)
    names: dict[tuple[str, str], Origin] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put(self, key: Key, value: Any, origin: Origin) -> None:
        """Add a value; a second one for a key is a problem."""
        if key in self.values:
            is_name = key[0] in NAMED_TABLES and key[-1] not in ("model", "encoder")
            twice = named_twice(key[0], key[1]) if is_name else f"{'.'.join(key)} is given twice"
            self.problems.append(f"{origin.label}: {twice}")
        else:
            self.values[key], self.origins[key] = value, origin

    def put_name(self, table: str, name: str, origin: Origin) -> None:
        """Add the name of an index, a model or a schema, after checking it."""
        try:
            check_name(table, name)
        except InputError as error:
            self.problems.append(f"{origin.label}: {error.message}")
        self.names.setdefault((table, name), origin)


def flags(given: Mapping[str, object], index: str | None = None) -> Layer:
    """Read the command line: flags by their parameter's name, and the argument INDEX.

    A repeated flag has a sequence of texts, a switch a boolean.
    """
    layer = Layer()
    if index is not None:
        _put_text(layer, BY_PARAMETER["index"], index, Origin("INDEX", "INDEX"))
    for setting in SETTINGS:
        if setting.parameter in given:
            _put(layer, setting, given[setting.parameter], Origin(setting.flag, setting.flag))
    return layer


def environment(variables: Mapping[str, str]) -> Layer:
    """Read the environment. An empty variable counts as unset; blanks separate values of a repeated flag."""
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
            name, text = _name_and_value(setting, text)
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


# The last part of a path alone names an index or a schema.
_NAME_OF: Mapping[str, Callable[[Path], str]] = {
    "index": lambda path: path.resolve().name,
    "schema": lambda path: path.stem,
}


def _name_and_value(setting: Setting, text: str) -> tuple[str, str]:
    """Read NAME=VALUE, of an index or a schema also VALUE alone; raises InputError."""
    name, separator, value = text.partition("=")
    name_of, forms = _NAME_OF.get(setting.parameter), setting.metavar
    if name_of is not None:
        forms += f" or {setting.metavar.removeprefix('NAME=')}"
        if not separator:
            name, value = name_of(Path(text)), text
    if not value or not (name or name_of):
        raise InputError(setting.parameter, f"expected {forms}, got {text!r}")
    if name_of is not None:
        check_name(setting.parameter, name)
    return name, value


# They concern an index that is named elsewhere.
_OF_INDEXES = ("use_model", "encoder")


# More than any configuration; a wrong file must not fill the memory.
_MAX_BYTES = 2**20


def read_config_file(file: Path) -> Layer:
    """Read a file of settings, or raise SourceError; errors in its values become problems of the layer."""
    tables = _parse(file)
    # As named, for messages; where it really lies, for the paths in it.
    shown, folder = os.fspath(file), Path(os.path.abspath(file)).parent
    layer = Layer()
    for table in NAMED_TABLES:
        for name in tables[table] if isinstance(tables.get(table), dict) else ():
            layer.put_name(table, name, Origin(f"{shown}: {_dotted((table, name))}", shown))
    for key, value in _leaves(tables):
        origin = Origin(f"{shown}: {_dotted(key)}", shown)
        setting = find(key)
        if setting is None:
            layer.problems.append(f"{origin.label}: {_unknown(key, value)}")
            continue
        try:
            layer.put(key, setting.kind.located(setting.kind.read(value), folder), origin)
        except WrongValueError as error:
            layer.problems.append(f"{origin.label}: {error}")
    return layer


def _parse(file: Path) -> dict[str, Any]:
    too_large = f"settings of at most {_MAX_BYTES:,} bytes are expected, this is larger"
    text = read_text(file, _MAX_BYTES, too_large)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SourceError(f"{file}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise SourceError(f"{file}: not valid TOML: arrays or tables are nested too deeply") from error


def _leaves(table: dict[str, Any], above: Key = ()) -> Iterator[tuple[Key, object]]:
    """Yield the values of a file, and tables that stand in the place of a value or of nothing known."""
    for part, value in table.items():
        key = (*above, part)
        if isinstance(value, dict) and _is_table(key):
            yield from _leaves(value, key)
        else:
            yield key, value


def _is_table(key: Key) -> bool:
    if key[0] in NAMED_TABLES:
        return len(key) == 1 or (len(key) == 2 and key[0] != "schemas")
    return len(key) == 1 and any(known[0] == key[0] for known in BY_KEY)


def _unknown(key: Key, value: object) -> str:
    if _is_table(key):
        form = f"[{key[0]}.NAME]" if key[0] in NAMED_TABLES and key[0] != "schemas" else f"[{key[0]}]"
        return f"must be a table, as {form}, got {described(value)}"
    if len(key) == 1 and isinstance(value, dict) and value:
        inner = ", ".join(value)
        return f"there is no such table{_suggestion(key, {known[0] for known in BY_KEY})} (it has {inner})"
    return f"there is no such key{_suggestion(key, {_dotted(known) for known in _candidates(key)})}"


def _candidates(key: Key) -> Iterator[Key]:
    """Yield the keys that may have been meant, with the file's name for an index or a model."""
    for known in BY_KEY:
        named = known[0] in NAMED_TABLES and key[0] == known[0] and len(key) >= 2
        yield (known[0], key[1], *known[2:]) if named else known


def _suggestion(key: Key, known: set[str]) -> str:
    one = nearest(_dotted(key), known, cutoff=0.7)
    close = [one] if one else []
    if not close:  # a key in another table than its own
        close = sorted(one for one in known if one.rsplit(".", 1)[-1] == key[-1])[:3]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _dotted(key: Key) -> str:
    return ".".join(part if part.replace("-", "").replace("_", "").isalnum() else repr(part) for part in key)


def config_text(config: ServerConfig, origins: Mapping[Key, Origin]) -> str:
    """Write a configuration as TOML, each value with its origin as a comment; others are called defaults.

    Paths are written absolute, so that the text means the same wherever it is saved; InputError for one that
    is not Unicode text, which TOML needs.
    """
    lines = ["# The settings of this server; genret serve --config FILE takes them back."]
    table: Key = ()
    for key, setting, value in _entries(config):
        if key[:-1] != table:
            table = key[:-1]
            lines += ["", _header(table)]
        short = origins[key].short if key in origins else "default"
        source = short if short.isprintable() else repr(short)
        if value is None:
            lines.append(f"# {key[-1]} is not set: {setting.unset}")
        else:
            lines.append(f"{_assignment(key, value, setting)}  # {source}")
    return "\n".join(lines) + "\n"


def _entries(config: ServerConfig) -> Iterator[tuple[Key, Setting, Any]]:
    """Yield every value with its key, table by table."""
    for setting in SETTINGS:
        if setting.key[0] not in NAMED_TABLES:
            yield setting.key, setting, _value(config, setting)
    for table, specs in (("models", config.models), ("indexes", config.indexes), ("schemas", config.schemas)):
        for spec in specs:
            for key, setting in settings_of(table, spec.name):
                yield key, setting, _value(spec, setting)


def _value(holder: Any, setting: Setting) -> Any:
    for part in setting.attribute:
        holder = getattr(holder, part)
    return holder


def _header(table: Key) -> str:
    nested: dict[str, Any] = {}
    for part in reversed(table):
        nested = {part: nested}
    return tomli_w.dumps(nested).rstrip("\n")


def _assignment(key: Key, value: Any, setting: Setting) -> str:
    is_local = setting.kind.type == Checkpoint and Path(value).exists()
    if isinstance(value, Path) or is_local:
        value = os.path.abspath(value)
    try:
        str(value).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(setting.parameter, f"TOML holds Unicode text only, got {value!r}") from None
    return tomli_w.dumps({key[-1]: value}).rstrip("\n")
