"""The `genret` group: errors, signals before a server runs, queries from input."""

from __future__ import annotations

import contextlib
import io
import shlex
import signal
import sys
from collections.abc import Iterable
from functools import partial

import click
import pytest

from genret.decoding.errors import DecodingError
from genret.retrieval.errors import GenretError
from genret.service import main
from genret.service.commands.query import BATCH_ID_BYTES, BATCH_ITEMS, arrivals, batches, most_items
from genret.service.commands.serve import _signals_before_the_server
from genret.service.configuration.server_config import LogConfig
from genret.service.main import COMMANDS, cli
from genret.service.observability.logs import announce
from tests.commands import refusal, run, succeed


def test_help_lists_every_command() -> None:
    output = succeed(cli, "--help").output
    for name, (_, short_help) in COMMANDS.items():
        assert f"  {name} " in output
        assert short_help in output


def test_an_unknown_command_is_a_usage_error() -> None:
    assert "No such command 'serv', did you mean 'serve'?" in refusal(cli, "serv")
    assert refusal(cli, "xyz").endswith("No such command 'xyz'.")


def test_the_version_is_told() -> None:
    assert succeed(cli, "--version").output.startswith("genret, version ")


def raiser(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GenretError("x: expected y, got z"), "Error: x: expected y, got z"),
        (DecodingError("no logits"), "Error: no logits"),
        (FileNotFoundError(2, "No such file or directory", "a.tsv"), "Error: [Errno 2] No such file"),
        (ZeroDivisionError("zero"), "Error: internal error: ZeroDivisionError: zero (--debug shows"),
    ],
)
def test_errors_are_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    monkeypatch.setattr(main, "raise_command", raiser(error), raising=False)
    monkeypatch.setitem(COMMANDS, "raise", ("service.main", "Raise."))
    said = refusal(cli, "raise", code=1)
    assert said.startswith(message)
    assert "\n" not in said
    assert run(cli, "--debug", "raise").exception is error


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("query", "what is the query?"),
        ("query ''", "query: must not be empty"),
        ("query x -k 0", "-k: must be in [1, 1000], got 0"),
        ("query x --temperature nan", "--temperature: must be in [0.01, 100], got nan"),
        ("query x --method magic", "'magic' is not one of 'auto', 'beam', 'disc', 'shortlist'"),
        ("query x --method beam --decoder disc", "--decoder: needs the method auto"),
        ("query x --timeout 0", "--timeout: must be a positive number"),
        ("query x --method disc --exact", "--exact: needs the method beam, got the method disc"),
        ("query x --aggregate mean", "Invalid value for '--aggregate': 'mean' is not one of 'sum', 'max'."),
        ("query x --min-mass 0.2", "--min-mass: needs the method disc, got the method auto with"),
        (
            "query x --method disc --beam-size 65",
            "--beam-size: must be in [1, 64] with the method disc, got 65",
        ),
        ("query x --filter 'kind ='", "--filter: at character 7: expected a value, got the end"),
        ("score x", "what are the titles?"),
        ("score x a --titles f", "what are the titles?"),
        ("score x a ' '", "titles[1]: must not be empty"),
        ("score ' ' a", "query: must not be empty"),
        ("serve", "name an index"),
        ("serve a --host 0.0.0.0", "allow that with --insecure"),
    ],
)
def test_wrong_options_exit_2_and_are_named(line: str, message: str) -> None:
    """The rules are those of requests (tests/retrieval/test_types.py), the names those of flags."""
    assert message in refusal(cli, *shlex.split(line))


def test_options_can_come_from_the_environment() -> None:
    said = refusal(cli, "query", "x", env={"GENRET_QUERY_K": "0"})
    assert "-k: must be in [1, 1000], got 0" in said


def test_a_stop_that_an_import_swallowed_is_made_up_for(capsys: pytest.CaptureFixture[str]) -> None:
    def serve() -> None:
        with _signals_before_the_server(partial(announce, LogConfig())) as stop_if_asked:
            with contextlib.suppress(BaseException):  # as a bare `except:` around an optional import does
                signal.raise_signal(signal.SIGTERM)
            assert capsys.readouterr().err == ""
            stop_if_asked()

    with pytest.raises(SystemExit) as caught:
        serve()
    assert caught.value.code == 143
    assert capsys.readouterr().err == "genret: stopped\n"


def test_nothing_stops_a_server_that_no_signal_has_reached() -> None:
    with _signals_before_the_server(pytest.fail) as stop_if_asked:
        stop_if_asked()


class Pipe(io.BytesIO):
    """Gives one piece per read, as a pipe whose writer pauses does."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        super().__init__()
        self.pieces = list(pieces)

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def flat(batches: Iterable[list[str]]) -> list[str]:
    return [text for batch in batches for text in batch]


def test_a_line_is_answered_before_the_next_one_is_there() -> None:
    pipe = Pipe([b"first\nsec", b"ond\n", b"third"])
    arriving = arrivals(pipe)
    assert next(arriving) == ["first"]
    assert len(pipe.pieces) == 2, "nothing more was read"
    assert flat(arriving) == ["second", "third"]


def test_blank_lines_a_byte_order_mark_and_windows_ends_are_no_part_of_queries() -> None:
    pipe = Pipe([b"\xef\xbb\xbfone\r\n\r\n  \n", "zwölf \n".encode()])
    assert flat(arrivals(pipe)) == ["one", "zwölf"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_characters_may_be_cut_by_pieces(cut: int) -> None:
    raw = "añb\n日本\nx".encode()
    assert flat(arrivals(Pipe([raw[:cut], raw[cut:]]))) == ["añb", "日本", "x"]


def test_what_is_not_utf8_is_named_after_the_lines_before_it() -> None:
    arriving = arrivals(Pipe([b"a\n\nb\n", b"c\n\xff\xfe\nd\n"]))
    assert next(arriving) == ["a", "b"]
    assert next(arriving) == ["c"]
    with pytest.raises(click.ClickException, match="standard input, line 5: not valid UTF-8"):
        next(arriving)
    with pytest.raises(click.ClickException, match="standard input, line 2: not valid UTF-8"):
        flat(arrivals(Pipe([b"a\n\xc3"])))


def test_calls_are_of_bounded_size_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"line {i}" for i in range(150)]
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    calls = list(batches(["one", "two", "-", "last"]))
    assert calls[0] == ["one", "two"]
    assert calls[-1] == ["last"]
    assert max(map(len, calls)) == BATCH_ITEMS
    assert flat(calls) == ["one", "two", *lines, "last"]


def test_long_lists_of_ids_make_short_calls() -> None:
    assert most_items((), ()) == BATCH_ITEMS
    assert most_items(["é" * 98] * 100, ["x" * 196] * 100) == BATCH_ID_BYTES // (2 * 100 * 200)
    assert most_items(["x" * 100] * 100_000) == 1
    assert [len(batch) for batch in batches(["q"] * 5, most=2)] == [2, 2, 1]
