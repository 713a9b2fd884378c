"""Makes one `ServerConfig` of flags, environment and file, or one error with every mistake in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from genret.retrieval.errors import GenretError, SourceError
from genret.service.configuration.kinds import fields_of
from genret.service.configuration.server_config import (
    IndexSpec,
    ModelSpec,
    RuleError,
    RulesError,
    SchemaSpec,
    ServerConfig,
)
from genret.service.configuration.settings import (
    BY_PARAMETER,
    DEFAULT_MODEL,
    NAMED_TABLES,
    SETTINGS,
    Key,
    settings_of,
)
from genret.service.configuration.sources import Layer, Origin, environment, flags, read_config_file

_INHERITED = ("device", "dtype", "threads")  # settings that a model of --add-model shares with the default


class ConfigurationError(GenretError):
    """Settings are wrong; `problems` has a line for each: where, what was expected, what was got."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = [f"{len(problems)} settings are wrong:", *(f"  {problem}" for problem in problems)]
        super().__init__("\n".join(lines) if len(problems) > 1 else problems[0])


class Resolved(NamedTuple):
    """A configuration, and the origins by key of its values that are not defaults."""

    config: ServerConfig
    origins: Mapping[Key, Origin]


def resolve(
    given: Mapping[str, object], index: str | None, variables: Mapping[str, str], file: Path | None
) -> Resolved:
    """Make a server's configuration: a flag wins over the environment, that over the file.

    `given` are the flags as `sources.flags` takes them, `index` is the argument INDEX. ConfigurationError
    names every mistake and its place.
    """
    problems: list[str] = []
    from_file = Layer()
    if file is not None:
        try:
            from_file = read_config_file(file)
        except SourceError as error:
            problems.append(str(error))
    layers = (from_file, environment(variables), flags(given, index))
    problems += [problem for layer in layers for problem in layer.problems]
    merged = _merge(layers)
    if problems:
        raise ConfigurationError(problems)
    _place_added_models(merged, from_file)
    return _Builder(merged).build()


def _merge(layers: Sequence[Layer]) -> Layer:
    """Lay later layers over earlier ones, key by key; new names of a layer come last."""
    merged = Layer()
    for one in layers:
        merged = Layer(merged.values | one.values, merged.origins | one.origins, merged.names | one.names)
    order = [name for layer in layers for name in layer.names]
    # The user asks for INDEX first, so it is the default index.
    first = [name for name in order if merged.names[name].short == "INDEX"]
    merged.names = {name: merged.names[name] for name in [*first, *order]}
    return merged


def _place_added_models(merged: Layer, from_file: Layer) -> None:
    for table, name in list(merged.names):
        if table != "models" or name == DEFAULT_MODEL or (table, name) in from_file.names:
            continue
        for part in _INHERITED:
            like, key = (table, DEFAULT_MODEL, part), (table, name, part)
            if like in merged.values and key not in merged.values:
                merged.put(key, merged.values[like], merged.origins[like])


class _Builder:
    def __init__(self, merged: Layer) -> None:
        self._values, self._origins = merged.values, merged.origins
        self._names = merged.names
        self._problems: list[str] = []

    def build(self) -> Resolved:
        """Return the configuration; raises ConfigurationError with every broken rule."""
        parts = self._plain_parts()
        indexes = self._indexes()
        if not indexes and not self._problems:
            self._problems.append(
                "name an index: genret serve INDEX, or [indexes.NAME] in the file of --config"
            )
        if not self._problems:
            try:
                models, schemas = self._models(indexes), self._schemas()
                config = ServerConfig(indexes=indexes, models=models, schemas=schemas, **parts)
                return Resolved(config, self._origins)
            except RulesError as error:
                self._problems += [self._told(broken) for broken in error.broken]
        raise ConfigurationError(self._problems)

    def _plain_parts(self) -> dict[str, Any]:
        """Return the arguments of `ServerConfig` but indexes, models and schemas."""
        parts: dict[str, Any] = {}
        sections: dict[str, dict[str, Any]] = {}
        for setting in SETTINGS:
            if setting.key[0] in NAMED_TABLES or setting.key not in self._values:
                continue
            value = self._values[setting.key]
            if len(setting.attribute) == 1:
                parts[setting.attribute[0]] = value
            else:
                sections.setdefault(setting.attribute[0], {})[setting.attribute[1]] = value
        declared = fields_of(ServerConfig)
        return parts | {name: declared[name].type(**values) for name, values in sections.items()}

    def _named(self, table: str) -> list[str]:
        return [name for of, name in self._names if of == table]

    def _parts(self, table: str, name: str) -> dict[str, Any]:
        """Return the attributes that are given for one index, model or schema."""
        keys = settings_of(table, name)
        return {one.attribute[0]: self._values[key] for key, one in keys if key in self._values}

    def _indexes(self) -> tuple[IndexSpec, ...]:
        names = self._named("indexes")
        specs = []
        for name in names:
            parts = self._parts("indexes", name)
            if "path" in parts:
                specs.append(IndexSpec(name, **parts))
            else:
                origin = self._names["indexes", name]
                self._problems.append(f'{origin.label}: the path of the index is missing, as path = "..."')
        for key, origin in self._origins.items():
            if key[0] == "indexes" and key[1] not in names:
                known = ", ".join(repr(name) for name in names) or "none"
                self._problems.append(f"{origin.label}: no index is named {key[1]!r}; indexes here: {known}")
        return tuple(specs)

    def _models(self, indexes: Sequence[IndexSpec]) -> tuple[ModelSpec, ...]:
        """Return the models; "default" is omitted if there are others and no index names it."""
        names = self._named("models")
        if DEFAULT_MODEL not in names and (not names or any(spec.model == DEFAULT_MODEL for spec in indexes)):
            names = [DEFAULT_MODEL, *names]
        return tuple(ModelSpec(name, **self._parts("models", name)) for name in names)

    def _schemas(self) -> tuple[SchemaSpec, ...]:
        return tuple(SchemaSpec(name, **self._parts("schemas", name)) for name in self._named("schemas"))

    def _told(self, broken: RuleError) -> str:
        """Return a broken rule with the place of the value to blame."""
        setting = BY_PARAMETER.get(broken.field)
        if setting is None or (setting.repeated and not broken.name):
            return f"--{broken.field.replace('_', '-')}: {broken.message}"
        key = setting.named(broken.name) if setting.repeated else setting.key
        origin = self._origins.get(key) or Origin(setting.flag, setting.flag)
        return f"{origin.label}: {broken.message}"
