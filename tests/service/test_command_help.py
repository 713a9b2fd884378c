"""Every option of every command says what it does, what leaving it out means, and its variable."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from genret.index_builder.cli import build_command
from genret.service.commands.serve import SettingOption
from genret.service.main import COMMANDS, cli

# Their options are settled with their own rooms; what is said of them here does not hold for them yet.
DTYPES = ["auto", "float32", "bfloat16", "float16", "float64"]


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def options(name: str) -> list[tuple[click.Option, click.Context]]:
    group = cli.make_context("genret", [], resilient_parsing=True)
    context = command(name).make_context(name, [], parent=group, resilient_parsing=True)
    return [(o, context) for o in command(name).params if isinstance(o, click.Option)]


def option(name: str, spelling: str) -> click.Option:
    (found,) = (o for o, _ in options(name) if spelling in o.opts)
    return found


def all_options() -> list[object]:
    return [
        pytest.param(o, context, id=f"{name} {o.opts[0]}")
        for name in COMMANDS
        for o, context in options(name)
    ]


@pytest.mark.parametrize(("option", "context"), all_options())
def test_an_option_says_what_it_does_its_default_and_its_variable(
    option: click.Option, context: click.Context
) -> None:
    record = option.get_help_record(context)
    assert record is not None, "no option is hidden"
    assert option.help
    told = record[1]
    assert "default: " in told or "required]" in told or option.is_flag, told
    longest = max(option.opts, key=len)
    # What is deployed on Ray is what `serve` serves, by the same variables.
    of = "serve" if isinstance(option, SettingOption) else context.info_name
    variable = f"GENRET_{of}_{longest.lstrip('-')}".upper().replace("-", "_")
    assert f"env var: {variable}" in told, told


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "train"])
def test_h_is_help_and_the_usage_names_the_command(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "-h"], prog_name="genret")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: genret {name} [OPTIONS]")


def test_the_builder_alone_has_the_same_help() -> None:
    result = CliRunner().invoke(build_command, ["-h"])
    assert result.exit_code == 0
    assert result.output.startswith("Usage: build-index [OPTIONS] TITLES")


@pytest.mark.parametrize("name", ["query", "link", "demo"])
def test_k_has_two_spellings(name: str) -> None:
    assert option(name, "--k").opts == ["-k", "--k"]


@pytest.mark.parametrize("name", ["serve", "link"])
def test_models_are_placed_by_the_same_options(name: str) -> None:
    dtype = option(name, "--dtype").type
    assert isinstance(dtype, click.Choice)
    assert list(dtype.choices) == DTYPES
    assert option(name, "--threads").default == 1
