"""The `genret` group: light to import, and errors are sentences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from genret.decoding.errors import DecodingError
from genret.retrieval.errors import GenretError
from genret.service import main
from genret.service.main import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "grpc", "google.protobuf", "pyarrow", "numpy", "rich", "tokenizers")


@pytest.fixture
def run() -> CliRunner:
    return CliRunner()


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from click.testing import CliRunner; import genret.service.main;"
        "result = CliRunner().invoke(genret.service.main.cli, ['--help']);"
        "assert result.exit_code == 0, result.output;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["serve", "query", "health"])
def test_the_services_own_commands_explain_themselves_without_torch_or_grpc(command: str) -> None:
    program = (
        "import sys; from click.testing import CliRunner; import genret.service.main;"
        f"result = CliRunner().invoke(genret.service.main.cli, ['{command}', '--help']);"
        "assert result.exit_code == 0, result.output;"
        "print([name for name in ('torch', 'transformers', 'grpc', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_help_lists_every_command(run: CliRunner) -> None:
    output = run.invoke(cli, ["--help"]).output
    for name, (_, short_help) in COMMANDS.items():
        assert f"  {name} " in output
        assert short_help in output


def test_an_unknown_command_is_a_usage_error(run: CliRunner) -> None:
    result = run.invoke(cli, ["serv"])
    assert result.exit_code == 2
    assert "No such command 'serv'" in result.stderr


def test_the_version_is_told(run: CliRunner) -> None:
    assert run.invoke(cli, ["--version"]).output.startswith("genret, version ")


def raiser(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GenretError("x: expected y, got z"), "Error: x: expected y, got z\n"),
        (DecodingError("no logits"), "Error: no logits\n"),
        (FileNotFoundError(2, "No such file or directory", "a.tsv"), "Error: [Errno 2] No such file"),
        (ZeroDivisionError("zero"), "Error: internal error: ZeroDivisionError: zero (--debug shows"),
    ],
)
def test_errors_are_one_line_and_exit_1(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    monkeypatch.setattr(main, "raise_command", raiser(error), raising=False)
    monkeypatch.setitem(COMMANDS, "raise", ("service.main", "Raise."))
    result = run.invoke(cli, ["raise"])
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert run.invoke(cli, ["--debug", "raise"]).exception is error


@pytest.mark.parametrize("error", [click.UsageError("u"), click.BadParameter("b")])
def test_usage_mistakes_exit_2(run: CliRunner, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(main, "raise_command", raiser(error), raising=False)
    monkeypatch.setitem(COMMANDS, "raise", ("service.main", "Raise."))
    assert run.invoke(cli, ["raise"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["query"], "what is the query?"),
        (["query", ""], "query: must not be empty"),
        (["query", " \t"], "query: must not be empty"),
        (["query", "x", "-k", "0"], "-k: must be in [1, 1000], got 0"),
        (["query", "x", "-k", "1000000"], "-k: must be in [1, 1000], got 1000000"),
        (["query", "x", "--beam-size", "0"], "--beam-size: must be in [1, 1000], got 0"),
        (["query", "x", "--temperature", "nan"], "--temperature: must be in [0.01, 100], got nan"),
        (["query", "x", "--method", "magic"], "'magic' is not one of 'auto', 'beam', 'disc', 'shortlist'"),
        (["query", "x", "--shortlist-size", "2001"], "--shortlist-size: must be in [1, 2000], got 2001"),
        (["query", "x", "--method", "beam", "--decoder", "disc"], "--decoder: needs the method auto"),
        (["score", "x"], "what are the titles?"),
        (["score", "x", "a", "--titles", "f"], "what are the titles?"),
        (["score", "x", "a", " "], "titles[1]: must not be empty"),
        (["score", " ", "a"], "query: must not be empty"),
        (["query", "x", "--timeout", "0"], "--timeout: must be a positive number"),
        (["serve"], "name an index"),
        (["serve", "a", "--index", "a=b"], "--index: two indexes are named 'a'"),
        (["serve", "a", "--port", "70000"], "--port: must be in [0, 65535], got 70000"),
        (["serve", "a", "--host", "0.0.0.0"], "allow that with --insecure"),
        (["serve", "a", "--max-batch-size", "0"], "--max-batch-size: must be in [1, 4096], got 0"),
    ],
)
def test_wrong_options_exit_2_and_are_named(run: CliRunner, arguments: list[str], message: str) -> None:
    result = run.invoke(cli, arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_every_option_can_come_from_the_environment(run: CliRunner) -> None:
    result = run.invoke(cli, ["serve", "a"], env={"GENRET_SERVE_PORT": "70000"})
    assert "--port: must be in [0, 65535], got 70000" in result.stderr
    result = run.invoke(cli, ["query", "x"], env={"GENRET_QUERY_K": "0"})
    assert "-k: must be in [1, 1000], got 0" in result.stderr
    result = run.invoke(cli, ["serve"], env={"GENRET_SERVE_INDEX": "a=b a=c"})
    assert "two indexes are named 'a'" in result.stderr
