"""A configuration as the text of a TOML file, which read again gives the same configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from retrieval.errors import InputError
from service.configuration.config import ServerConfig
from service.configuration.kinds import Checkpoint
from service.configuration.settings import DEFAULT_MODEL, NAME, NAMED_TABLES, SETTINGS, Key, Setting
from service.configuration.sources import Origin

_Entry = tuple[Key, Setting, Any]


def config_text(config: ServerConfig, origins: Mapping[Key, Origin]) -> str:
    """Write a configuration, each value with a comment that says where it came from.

    Paths are written absolute, so that the text means the same wherever it is saved.

    Args:
        config: The configuration.
        origins: Where values came from, by their key; what is not in it is called a default.

    Raises:
        InputError: a path is not Unicode text, which TOML needs.
    """
    lines = ["# The settings of this server; genret serve --config FILE takes them back."]
    table: Key = ()
    for key, setting, value in _entries(config):
        if key[:-1] != table:
            table = key[:-1]
            lines += ["", _header(table)]
        origin = origins.get(key)
        source = _one_line(origin.short) if origin else "default"
        if value is None:
            lines.append(f"# {key[-1]} is not set: {setting.unset}")
        else:
            lines.append(f"{_assignment(key, value, setting)}  # {source}")
    return "\n".join(lines) + "\n"


def _entries(config: ServerConfig) -> Iterator[_Entry]:
    """Yield every value with its key, table by table."""
    for setting in SETTINGS:
        if setting.key[0] not in NAMED_TABLES:
            yield setting.key, setting, _value(config, setting)
    for table, specs in (("models", config.models), ("indexes", config.indexes)):
        of_table = [one for one in SETTINGS if one.key[0] == table]
        place = DEFAULT_MODEL if table == "models" else NAME
        for spec in specs:
            for setting in of_table:
                if setting.key[1] == place:
                    yield (table, spec.name, setting.key[2]), setting, _value(spec, setting)
    (schema,) = (setting for setting in SETTINGS if setting.key[0] == "schemas")
    for named in config.schemas:
        yield ("schemas", named.name), schema, named.path


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
    is_local = isinstance(setting.kind, Checkpoint) and Path(value).exists()
    if isinstance(value, Path) or is_local:
        value = os.path.abspath(value)
    try:
        str(value).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(setting.parameter, f"TOML holds Unicode text only, got {value!r}") from None
    return tomli_w.dumps({key[-1]: value}).rstrip("\n")


def _one_line(text: str) -> str:
    return text if text.isprintable() else repr(text)
