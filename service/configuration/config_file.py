"""Reading a TOML file of settings."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.errors import SourceError
from service.configuration.kinds import WrongValueError, described, locate
from service.configuration.settings import BY_KEY, NAMED_TABLES, Key, find
from service.configuration.sources import Layer, Origin

# More than any configuration; a wrong file must not fill the memory.
_MAX_BYTES = 2**20


def read_config_file(file: Path) -> Layer:
    """Read a file of settings; its values are checked, and what is wrong stands in the layer's problems.

    Raises:
        SourceError: the file cannot be read, or is no TOML; says where.
    """
    tables = _parse(file)
    # As it was named, for messages; where it really lies, for the paths in it.
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
            layer.put(key, locate(setting.kind, setting.kind.read(value), folder), origin)
        except WrongValueError as error:
            layer.problems.append(f"{origin.label}: {error}")
    return layer


def _parse(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_BYTES:
        raise SourceError(f"{file}: settings of at most {_MAX_BYTES:,} bytes are expected, this is larger")
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SourceError(f"{file}: not valid UTF-8 at byte {error.start + 1}") from error
    except tomllib.TOMLDecodeError as error:
        raise SourceError(f"{file}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise SourceError(f"{file}: not valid TOML: arrays or tables are nested too deeply") from error


def _leaves(table: dict[str, Any], above: Key = ()) -> Iterator[tuple[Key, object]]:
    """Yield the values of a file, and the tables that stand where a value or nothing is expected."""
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
    """Yield the keys that may have been meant, with the name that the file gives to an index or a model."""
    for known in BY_KEY:
        named = known[0] in NAMED_TABLES and key[0] == known[0] and len(key) >= 2
        yield (known[0], key[1], *known[2:]) if named else known


def _suggestion(key: Key, known: set[str]) -> str:
    written = _dotted(key)
    close = difflib.get_close_matches(written, sorted(known), n=1, cutoff=0.7)
    if not close:  # a key in another table than its own
        close = sorted(one for one in known if one.rsplit(".", 1)[-1] == key[-1])[:3]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _dotted(key: Key) -> str:
    return ".".join(part if part.replace("-", "").replace("_", "").isalnum() else repr(part) for part in key)
