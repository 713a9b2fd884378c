"""`genret serve`, `query` and `health` as processes, the way a user runs them."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.changing_index import ChangingIndex
from tests.service.server_process import ENVIRONMENT, GENRET, ServerProcess, genret

READY = r"^genret: ready on (\S+): index 'tiny' \(12 entities, (\d+) rows\); model (\S+) on cpu$"


@pytest.fixture(scope="module")
def files(checkpoint: Path, tiny_index: Path) -> tuple[str, ...]:
    return str(tiny_index), "--model", str(checkpoint)


@pytest.fixture(scope="module")
def server(files: tuple[str, ...]) -> Iterator[str]:
    """The address of a server."""
    with ServerProcess(*files) as process:
        address = process.address()
        assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", address), "a free port is found and told"
        yield address
        process.send(signal.SIGTERM)
        assert process.exit_code() == 0, "SIGTERM ends in exit code 0"
        assert any(re.match(READY, line) for line in process.lines)


def test_a_pipe_gets_lines(server: str) -> None:
    done = genret("query", "who wrote hamlet", "-k", "3", "--address", server)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [["who wrote hamlet", str(rank)] for rank in (1, 2, 3)]
    assert all(len(row) == 9 and float(row[5]) < 0 for row in rows)
    for row in rows:
        shares = dict(share.split("=") for share in row[8].split(" "))
        assert sum(map(float, shares.values())) == pytest.approx(float(row[7]), abs=1e-5)
    assert 0 < sum(float(row[6]) for row in rows) <= 1


def test_several_queries_and_stdin_go_in_one_stream(server: str) -> None:
    lines = "\n".join(f"query {i}" for i in range(70)) + "\n\n"
    done = genret("query", "first", "-", "-k", "1", "--json", "--address", server, stdin=lines)
    queries = [json.loads(line)["query"] for line in done.stdout.splitlines()]
    assert queries == ["first", *(f"query {i}" for i in range(70))]


def test_one_bad_query_among_good_ones_fails_alone(server: str) -> None:
    done = genret("query", "good", "word " * 400, "-k", "1", "--address", server)
    assert done.returncode == 1
    assert done.stdout.startswith("good\t1\t")
    assert "too long" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--index", "nope"), "no index named 'nope' is served here; served: tiny"),
        (("--prompt", "poem"), "unknown template 'poem'"),
        # Either side of the call may notice first.
        (("--timeout", "0.0001"), r"no answer from|the deadline passed"),
    ],
)
def test_refusals_are_one_line(server: str, arguments: tuple[str, ...], message: str) -> None:
    done = genret("query", "x", *arguments, "--address", server)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(message, done.stderr)
    assert done.stderr.count("\n") == 1


def test_no_server_is_said_with_what_to_do() -> None:
    for arguments in (("query", "x"), ("query", "x", "y"), ("health",)):
        done = genret(*arguments, "--address", "127.0.0.1:1")
        assert (done.returncode, done.stdout) == (1, "")
        assert "no server answers at 127.0.0.1:1" in done.stderr
        assert done.stderr.count("\n") == 1
    assert "genret serve" in genret("query", "x", "--address", "127.0.0.1:1").stderr


def refused_to_serve(*arguments: str) -> str:
    """Return the one line that is said behind the one that tells what is opened."""
    done = genret("serve", *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    opening, line = done.stderr.splitlines()
    assert opening.startswith("genret: opening index ")
    return line


def test_a_port_in_use_is_one_line(server: str, files: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:  # of a server, and of something else
        mine, theirs = server.rsplit(":", 1)[1], other.getsockname()[1]
        for option, port in (("--port", mine), ("--port", theirs), ("--http-port", theirs)):
            said = refused_to_serve(*files, "--port", "0", option, str(port))
            begin = f"Error: cannot listen on 127.0.0.1:{port}: "
            assert said == begin + f"Address already in use; {option} takes another one"


def test_an_index_that_is_not_there_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    said = refused_to_serve(str(tmp_path / "nope"), "--model", str(checkpoint), "--port", "0")
    assert str(tmp_path / "nope") in said


def test_a_damaged_index_is_told_and_debug_shows_the_traceback(checkpoint: Path, tmp_path: Path) -> None:
    damaged = ChangingIndex(tmp_path, checkpoint)
    damaged.damage("trie.arrow")
    arguments = ("serve", str(damaged.path), "--model", str(checkpoint), "--port", "0")
    done = genret(*arguments)
    assert done.returncode == 1
    assert "trie.arrow" in done.stderr
    assert "Traceback" not in done.stderr
    assert "IndexChecksumError" in genret("--debug", *arguments).stderr


def test_an_interrupted_server_says_so_and_exits_with_0(files: tuple[str, ...]) -> None:
    with ServerProcess(*files) as process:
        process.address()
        process.send(signal.SIGINT)
        assert process.exit_code() == 0
        assert process.lines[-1] == "genret: stopped"


# A disk that takes its time: whoever reads the model's files waits for whoever writes to the pipe.
WAITING = """
import os, pathlib

read_text = pathlib.Path.read_text

def slowly(path, *arguments, **options):
    if path.name == "tokenizer_config.json":
        open(os.environ["PIPE"]).read()
    return read_text(path, *arguments, **options)

pathlib.Path.read_text = slowly
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_server_stopped_before_it_was_ready_exits_as_shells_say(
    files: tuple[str, ...], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "sitecustomize.py").write_text(WAITING)
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}", "PIPE": str(pipe)}
    command = [*GENRET, "serve", *files, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
    writer = open_for_writing(pipe, process)
    process.send_signal(number)
    os.close(writer)  # what is being opened ends before the process does
    _, said = process.communicate(timeout=60)
    opening, *warned, last = said.decode().splitlines()
    assert opening.startswith("genret: opening index '")
    assert last == "genret: stopped"
    assert all("the model was never weighed on this index" in line for line in warned)  # a random model
    assert process.returncode == code


def test_why_a_server_does_not_start_is_a_record_where_its_log_is_json() -> None:
    command = [*GENRET, "serve", "nothere", "--log-format", "json"]
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, text=True, timeout=60)
    _, last = map(json.loads, done.stderr.splitlines())
    assert (done.returncode, last["level"]) == (1, "error")
    assert (last["logger"], last["message"]) == ("genret.life", "nothere: no such directory")


def open_for_writing(pipe: Path, reader: subprocess.Popen[bytes]) -> int:
    """Open a named pipe once a process reads from it."""
    end = time.monotonic() + 60
    while time.monotonic() < end and reader.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads yet
                raise
            time.sleep(0.02)
    reader.kill()
    raise AssertionError(f"nothing was read from {pipe}")
