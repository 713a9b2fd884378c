"""Every setting can be said by flag, variable and file, in that order, and the manual lists it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from service.commands.serve import serve_command
from service.configuration.server_config import IndexSpec, ModelSpec, SchemaSpec, ServerConfig
from service.configuration.settings import SETTINGS, Setting, renewed
from service.main import cli
from tests.service.setting_samples import resolved, sample

EVERY = [pytest.param(setting, id=setting.dotted) for setting in SETTINGS]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def leaves(owner: Any, above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the attributes of a configuration that are no sections."""
    found = set()
    for one in fields(owner):
        default = one.default_factory() if callable(one.default_factory) else None
        inner = leaves(type(default), (*above, one.name)) if is_dataclass(default) else {(*above, one.name)}
        found |= inner
    return found


def test_no_field_of_the_configuration_is_without_a_setting() -> None:
    of = {"plain": set[tuple[str, ...]](), "indexes": set(), "models": set(), "schemas": set()}
    for setting in SETTINGS:
        of.get(setting.key[0], of["plain"]).add(setting.attribute)
    assert of["plain"] == leaves(ServerConfig) - {("indexes",), ("models",), ("schemas",)}
    for table, owner in (("indexes", IndexSpec), ("models", ModelSpec), ("schemas", SchemaSpec)):
        assert of[table] == leaves(owner) - {("name",)}


def test_keys_flags_and_variables_are_distinct() -> None:
    for words in ([s.key for s in SETTINGS], [s.flag for s in SETTINGS], [s.variable for s in SETTINGS]):
        assert len(set(words)) == len(words)


@pytest.mark.parametrize("setting", EVERY)
def test_the_command_has_the_option_with_its_default_and_variable(setting: Setting) -> None:
    (option,) = (p for p in serve_command.params if setting.flag in p.opts)
    assert isinstance(option, click.Option)
    assert option.envvar == setting.variable
    assert option.help == setting.help
    if not setting.repeated:
        assert option.default == setting.default
    assert option.secondary_opts == ([setting.negation] if setting.negation else [])


@pytest.mark.parametrize("setting", EVERY)
def test_a_setting_is_taken_from_flag_variable_and_file(tmp_path: Path, setting: Setting) -> None:
    one = sample(setting, 0)
    beside = one.companions
    index = None if setting.parameter in ("use_model", "encoder") else "/i"
    by_flag = resolved(tmp_path, {**beside, setting.parameter: one.flag}, index=index)
    by_variable = resolved(tmp_path, beside, {setting.variable: one.text}, index=index)
    by_file = resolved(tmp_path, beside, {}, one.toml, index=index)
    for way in (by_flag, by_variable, by_file):
        got = one.got(way.config)
        assert got == one.value
        assert type(got) is type(one.value)
    assert by_flag.origins[one.key].short == setting.flag
    assert by_variable.origins[one.key].short == setting.variable
    assert by_file.origins[one.key].label == f"{tmp_path / 'server.toml'}: {'.'.join(one.key)}"


@pytest.mark.parametrize(
    "sources",
    [("flag", "variable", "file"), ("flag", "variable"), ("flag", "file"), ("variable", "file")],
    ids="-".join,
)
@pytest.mark.parametrize("setting", EVERY)
def test_a_flag_wins_over_a_variable_over_the_file(
    tmp_path: Path, setting: Setting, sources: tuple[str, ...]
) -> None:
    of_flag, of_variable, of_file = (sample(setting, number) for number in range(3))
    config = resolved(
        tmp_path,
        of_flag.companions | ({setting.parameter: of_flag.flag} if "flag" in sources else {}),
        {setting.variable: of_variable.text} if "variable" in sources else {},
        of_file.toml if "file" in sources else "",
        index=None if setting.parameter in ("use_model", "encoder") else "/i",
    ).config
    expected = {"flag": of_flag, "variable": of_variable, "file": of_file}[sources[0]]
    assert of_flag.got(config) == expected.value


def test_without_any_source_there_are_the_defaults(tmp_path: Path) -> None:
    assert resolved(tmp_path).config == ServerConfig(indexes=(IndexSpec("i", Path("/i")),))
    assert resolved(tmp_path, toml="").config == resolved(tmp_path).config
    assert resolved(tmp_path).origins.keys() == {("indexes", "i", "path")}


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.negation])
def test_switches_are_switched_both_ways(setting: Setting) -> None:
    """The command line hands on what it was given, so that a flag takes back what a file says."""
    run = CliRunner()
    beside = ["--log-requests"] if setting.parameter == "log_queries" else []
    for flag, word in ((setting.flag, "true"), (setting.negation, "false")):
        assert flag is not None
        other = {setting.variable: "false" if word == "true" else "true"}
        done = run.invoke(cli, ["serve", "i", "--print-config", *beside, flag], env=other)
        assert done.exit_code == 0, done.output
        assert f"{setting.key[-1]} = {word}  # {setting.flag}\n" in done.stdout


def test_the_manual_has_the_table_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run: python -m service.configuration.settings docs/configuration.md"
    for setting in SETTINGS:
        assert f"| `{setting.dotted}` |" in page
