"""A value of its own for every setting, in the form of a flag or variable and in that of a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.configuration.kinds import CheckpointName, FilePath, Number, Switch, Whole, Word
from service.configuration.resolve import Resolved, resolve
from service.configuration.server_config import ServerConfig
from service.configuration.settings import NAME, Key, Setting

# What has to be said beside a setting so that the rules between settings hold.
_COMPANIONS: dict[str, dict[str, object]] = {
    "tls_certificate": {"tls_key": "/k"},
    "tls_key": {"tls_certificate": "/c"},
    "tls_client_ca": {"tls_certificate": "/c", "tls_key": "/k"},
    "log_queries": {"log_requests": True},
    "encoder": {"index": ["a=/a"]},
    "use_model": {"add_model": ["one=x", "two=x", "three=x", "default=x"], "index": ["a=/a"]},
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a setting.

    Attributes:
        setting: The setting.
        text: As the environment has it.
        value: As Python has it.
    """

    setting: Setting
    text: str
    value: Any

    @property
    def flag(self) -> object:
        """As a flag gives it."""
        if isinstance(self.value, bool):
            return self.value
        return [self.text] if self.setting.repeated else self.text

    @property
    def key(self) -> Key:
        """Where a file has it."""
        return self.setting.named("a")

    @property
    def toml(self) -> str:
        """As a file has it."""
        value = str(self.value) if isinstance(self.value, Path) else self.value
        if len(self.key) == 2 and self.key[0] == "schemas":
            return f"[schemas]\na = {json.dumps(value)}\n"
        *table, name = self.key
        return f"[{'.'.join(table)}]\n{name} = {json.dumps(value)}\n"

    @property
    def companions(self) -> dict[str, object]:
        """Flags that it needs beside it."""
        return _COMPANIONS.get(self.setting.parameter, {})

    def got(self, config: ServerConfig) -> Any:
        """Return what the configuration has for it."""
        holder: Any = config
        if self.setting.key[0] in ("indexes", "models", "schemas"):
            name = "a" if NAME in self.setting.key else "default"
            (holder,) = (spec for spec in getattr(config, self.setting.key[0]) if spec.name == name)
        for part in self.setting.attribute:
            holder = getattr(holder, part)
        return holder


def sample(setting: Setting, number: int) -> Sample:
    """Return one of three values, as different as the kind allows; the first is not the default."""
    kind = setting.kind
    value: Any
    match kind:
        case Switch():
            value = (number % 2 == 0) is not setting.default
        case Whole():
            value = 1031 + number if setting.default is None else setting.default + 1 + number
        case Number():
            value = 0.125 * (1 + number)
        case Word():
            others = [word for word in kind.rule.words if word != setting.default]
            value = others[number % len(others)]
        case FilePath():
            value = Path(f"/some/where{number}")
        case CheckpointName():
            value = f"hub/model-{number}"
        case _ if setting.key[-1] == "endpoint":
            value = f"http://127.0.0.{2 + number}:4317"
        case _:
            value = f"127.0.0.{2 + number}" if setting.key[-1] == "host" else ["one", "two", "three"][number]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return Sample(setting, f"a={text}" if setting.repeated else text, value)


def resolved(
    tmp_path: Path,
    flags: dict[str, object] | None = None,
    variables: dict[str, str] | None = None,
    toml: str | None = None,
    index: str | None = "/i",
) -> Resolved:
    """Resolve settings, with an index named "i" unless told otherwise."""
    file = None
    if toml is not None:
        file = tmp_path / "server.toml"
        file.write_text(toml, encoding="utf-8")
    return resolve(flags or {}, index, variables or {}, file)
