"""Every command: the width and parts of its help, its examples, --json, and completion in shells."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from genret.index_builder.cli import build_command
from genret.service.commands.serve import SettingOption
from genret.service.main import COMMANDS, EXAMPLES, cli
from tests.e2e.pages import code, rows, section, text_of

NO_JSON = {
    "serve": "runs until it is stopped; --print-config says what it would run with",
    "deploy-ray": "runs until it is stopped; --print-config says what it would run with",
    "demo": "shows other commands and what they print",
}
HEAVY = ("torch", "transformers", "pyarrow", "numpy", "grpc")
OTHERS = ("google.protobuf", "rich", "tokenizers", "bm25s", "matplotlib", "ir_measures")
SERVED = ("torch", "transformers", "grpc", "pyarrow")
SHELLS = ("bash", "zsh", "fish")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by what is typed, those of groups too."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield f"genret {name}", command
        if isinstance(command, click.Group):
            yield from ((f"genret {name} {one}", found) for one, found in command.commands.items())
    yield "build-index", build_command


ALL = dict(commands())
LEAVES = {name: command for name, command in ALL.items() if not isinstance(command, click.Group)}


def help_of(typed: str, width: int = 80) -> str:
    program, *words = typed.split()
    command = cli if program == "genret" else build_command
    options = {"prog_name": program, "terminal_width": width, "max_content_width": width}
    result = CliRunner().invoke(command, [*words, "--help"], **options)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("typed", ["genret", *ALL])
@pytest.mark.parametrize("width", [80, 100])
def test_no_line_of_a_help_is_wider_than_the_terminal(typed: str, width: int) -> None:
    lines = help_of(typed, width).splitlines()
    assert not [line for line in lines if len(line) > width]


@pytest.mark.parametrize("typed", ALL)
def test_a_help_has_its_parts_in_order(typed: str) -> None:
    text = help_of(typed)
    assert text.startswith(f"Usage: {typed} [OPTIONS]")
    parts = re.findall(r"^(Usage|[A-Z][\w ,\[\]-]*):(?= |$)|^  (Examples):$", text, re.M)
    found = [first or second for first, second in parts]
    assert found[0] == "Usage"
    assert {"Options", "Other options"} & set(found)
    assert found.count("Examples") == (typed.count(" ") < 2)
    assert found[-1] == "Examples" or "Examples" not in found
    about = text.split("\n\n")[1]
    assert re.match(r"  [A-Z].*", about), "the second part says what it does"


def context_of(typed: str) -> click.Context:
    """The context in which click makes the help of a command."""
    if typed == "build-index":
        return build_command.make_context(typed, [], resilient_parsing=True)
    context = cli.make_context("genret", [], resilient_parsing=True)
    for word in typed.split()[1:]:
        command = context.command.get_command(context, word)  # type: ignore[attr-defined]
        context = command.make_context(word, [], parent=context, resilient_parsing=True)
    return context


def flags(typed: str) -> dict[str, click.Option]:
    options = [option for option in LEAVES[typed].params if isinstance(option, click.Option)]
    return {flag: option for option in options for flag in option.opts}


@pytest.mark.parametrize("typed", LEAVES)
def test_an_option_says_what_it_does_its_default_and_its_variable(typed: str) -> None:
    context = context_of(typed)
    for option in set(flags(typed).values()):
        record = option.get_help_record(context)
        assert record is not None, "no option is hidden"
        assert option.help
        told = record[1]
        assert "default: " in told or "required]" in told or option.is_flag, told
        # What is deployed on Ray is what `serve` serves, by the same variables.
        of = "genret serve" if isinstance(option, SettingOption) else typed
        variable = f"{of.replace('build-index', 'genret build')} {max(option.opts, key=len).lstrip('-')}"
        variable = re.sub("[ -]", "_", variable).upper()
        assert f"env var: {variable}" in told, told


@pytest.mark.parametrize("typed", ["genret query", "genret link", "genret demo"])
def test_k_has_two_spellings(typed: str) -> None:
    assert flags(typed)["--k"].opts == ["-k", "--k"]


@pytest.mark.parametrize("typed", ["genret serve", "genret link"])
def test_models_are_placed_by_the_same_options(typed: str) -> None:
    dtype = flags(typed)["--dtype"].type
    assert isinstance(dtype, click.Choice)
    assert list(dtype.choices) == ["auto", "float32", "bfloat16", "float16", "float64"]
    assert flags(typed)["--threads"].default == 1


def test_every_command_has_examples_that_its_parser_takes() -> None:
    assert list(EXAMPLES) == list(COMMANDS)
    for lines in EXAMPLES.values():
        for line in lines:
            words = shlex.split(line.partition(" < ")[0])
            words = words[1:] if "=" in words[0] else words
            typed = " ".join(words[:3]) if " ".join(words[:3]) in LEAVES else " ".join(words[:2])
            rest = words[len(typed.split()) :]
            command = LEAVES[typed]
            parser = command.make_parser(click.Context(command))
            values, left, _ = parser.parse_args(args=list(rest))
            assert not left
            required = {one.name for one in command.params if one.required and not one.default}
            assert not {name for name in required if not values.get(name)}, line


@pytest.mark.parametrize("typed", LEAVES)
def test_a_command_that_prints_facts_prints_them_as_json(typed: str) -> None:
    if typed.removeprefix("genret ") in NO_JSON:
        assert "--json" not in flags(typed)
    else:
        assert flags(typed)["--json"].is_flag or typed == "genret doctor"  # FILE|-, beside the tables


def test_the_page_says_what_every_command_prints_as_json() -> None:
    told = {code(cell)[0]: text for cell, text in rows(section("docs/commands.md", "JSON"))}
    names = [name.removeprefix("genret ") for name in LEAVES if name != "build-index"]
    assert list(told) == names
    for name, reason in NO_JSON.items():
        assert told[name] == f"none: it {reason.replace('--print-config', '`--print-config`')}"


def completed(*words: str, **variables: str) -> tuple[str, str]:
    """Run `genret` in a process of its own; return what it prints, and the heavy modules it imported."""
    program = (
        f"import sys\nfrom genret.service.main import cli\nsys.argv[1:] = {words!r}\n"
        "try:\n    cli(prog_name='genret')\n"
        f"finally:\n    print([name for name in {HEAVY + OTHERS!r} if name in sys.modules], file=sys.stderr)"
    )
    command, environment = [sys.executable, "-c", program], {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()[-1]


def assert_absent(names: tuple[str, ...], imported: str) -> None:
    assert not [name for name in names if repr(name) in imported]


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        ("--help", (*HEAVY, "google.protobuf", "rich", "tokenizers")),
        *((f"{name} --help", SERVED) for name in ("serve", "query", "health")),
        ("serve nowhere --print-config", SERVED),
        ("evaluate -h", ("torch", "bm25s", "matplotlib", "ir_measures")),
    ],
)
def test_what_only_tells_imports_nothing_heavy(line: str, absent: tuple[str, ...]) -> None:
    said, imported = completed(*line.split())
    assert said.startswith("Usage: ") or "nowhere" in said
    assert_absent(absent, imported)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_valid_and_loads_nothing_heavy(shell: str, tmp_path: Path) -> None:
    said, imported = completed(_GENRET_COMPLETE=f"{shell}_source")
    assert "genret" in said
    assert imported == "[]"
    if shell == "bash":
        script = tmp_path / "genret.bash"
        script.write_text(said, encoding="utf-8")
        subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("words", "expected", "absent"),
    [
        ("genret in", ["inspect", "init-model", "indexes"], HEAVY),
        ("genret se", ["serve"], HEAVY),
        ("genret query --beam", ["--beam-size"], ("torch", "transformers", "pyarrow", "grpc")),
        ("genret query --method ", ["auto", "beam", "disc", "shortlist"], ("torch", "transformers", "grpc")),
        ("genret build --vector-s", ["--vector-sample"], ("torch", "transformers", "grpc")),
        ("genret evaluate --met", ["--method", "--metric"], ("torch", "transformers")),
        ("genret token n", ["new"], ("torch", "transformers")),
    ],
)
def test_words_are_completed_without_a_model(
    words: str, expected: list[str], absent: tuple[str, ...]
) -> None:
    place = len(words.split()) - (not words.endswith(" "))
    said, imported = completed(_GENRET_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(place))
    assert [line.partition(",")[2] for line in said.splitlines()] == expected
    assert_absent(absent, imported)


def test_the_page_names_the_line_of_every_shell() -> None:
    text = text_of("docs/commands.md")
    for shell in SHELLS:
        assert f"_GENRET_COMPLETE={shell}_source genret" in text
