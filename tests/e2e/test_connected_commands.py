"""Commands that talk to a server: TLS, tokens, indexes, reload, streams and waiting, in one process."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from genret.retrieval.errors import IndexChecksumError
from genret.service.client import RetrievalClient
from genret.service.client.reply import EvidenceInfo, RankingInfo, VectorsInfo
from genret.service.main import cli
from genret.service.security.bearer_tokens import Scope, line_of, new_token
from genret.service.status import told
from tests.commands import refusal, run, succeed
from tests.service.certificates import Authority
from tests.service.fake_retriever import FakeRetriever, served
from tests.service.running_server import Threaded, threaded
from tests.service.secured_server import tokens_in
from tests.service.server_process import GENRET

COLUMNS = (("kind", "string"), ("year", "int"))
genret, refused = partial(succeed, cli), partial(refusal, cli)
NOBODY = ("--address", "127.0.0.1:9")


def at(api: Threaded, *arguments: object, **options: Any) -> Result:
    return genret(*arguments, "--address", api.server.address, **options)


def described(name: str, **fields: Any) -> Any:
    index = served(FakeRetriever(), name)
    return dataclasses.replace(index, description=dataclasses.replace(index.description, **fields))


DAMAGED = IndexChecksumError("vectors.faiss", "/srv/index: digest")
EVIDENCE = {
    "vectors": VectorsInfo("lexical", "flat", 256, 50, 51_200, 1.0, False, told(DAMAGED)),
    "evidence": (
        EvidenceInfo("names", 8094, 3 * 2**19),
        EvidenceInfo("vectors", 50, 51_200, told(DAMAGED)),
    ),
    "ranking": RankingInfo(True, False, "asked.tsv", 25_556),
}


@pytest.fixture
def api() -> Iterator[Threaded]:
    indexes = {
        "films": described("films", loaded_at=1_700_000_000.9, columns=COLUMNS, max_title_tokens=9),
        "people": described("people", **EVIDENCE),
    }
    with threaded(indexes=indexes) as running:
        yield running


def test_indexes_are_lines_in_a_pipe(api: Threaded) -> None:
    done = at(api, "indexes")
    assert done.stderr == ""
    first, second = (line.split("\t") for line in done.stdout.splitlines())
    assert first[:6] == ["films", "v1", "20", "30", "fake-model", "cpu"]
    assert first[6:] == ["2023-11-14T22:13:20Z", "default", ""]
    assert (second[0], second[7:]) == ("people", ["", "names, -vectors"])


FILMS = json.loads("""{
    "name": "films", "version": "v1", "digest": "d1", "num_rows": 30, "num_entities": 20,
    "model": "fake-model", "device": "cpu", "is_default": true, "loaded_at": "2023-11-14T22:13:20Z",
    "max_title_tokens": 9, "columns": {"kind": "string", "year": "int"},
    "vectors": null, "evidence": [], "ranking": null
}""")
VECTORS = json.loads("""{
    "method": "lexical", "kind": "flat", "dimensions": 256, "count": 50, "bytes": 51200, "recall": 1.0,
    "usable": false
}""")
RANKING = json.loads("""{
    "fitted": true, "fitted_with_model": false, "queries": "asked.tsv", "num_queries": 25556, "problem": ""
}""")


def test_indexes_are_objects_for_programs(api: Threaded) -> None:
    done = at(api, "indexes", "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == FILMS
    assert not second["is_default"]
    problem = "vectors.faiss: size or digest differs from the index manifest"
    assert second["vectors"] == {**VECTORS, "problem": problem}
    assert second["evidence"] == [
        {"kind": "names", "count": 8094, "bytes": 3 * 2**19, "problem": ""},
        {"kind": "vectors", "count": 50, "bytes": 51_200, "problem": problem},
    ]
    assert second["ranking"] == RANKING
    (alone,) = at(api, "indexes", "people", "--json").stdout.splitlines()
    assert json.loads(alone) == second


def test_indexes_are_tables_for_people(api: Threaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.service.commands.running_server.sys", Terminal())
    wide = {"COLUMNS": "160"}
    every = at(api, "indexes", env=wide)
    assert "films (default)" in every.stdout
    assert "2023-11-14T22:13:20Z" in every.stdout
    one = at(api, "indexes", "films", env=wide)
    assert "kind (string), year (int)" in one.stdout
    assert "9 tokens" in one.stdout
    broken = at(api, "indexes", "people", env=wide)
    for said in (
        "names: 8,094, 1.5 MiB",
        "vectors: cannot be used: vectors.faiss: size or digest differs",
        "fitted without this model on 25,556 queries: asked.tsv",
    ):
        assert said in broken.stdout


class Terminal:
    """Stands for `sys`, with a terminal behind stdout and stderr."""

    class stdout:  # noqa: N801
        @staticmethod
        def isatty() -> bool:
            return True

    stderr = stdout


def test_an_unknown_index_is_said(api: Threaded) -> None:
    for command in ("indexes", "reload"):
        said = refused(command, "nowhere", "--address", api.server.address, code=1)
        assert said == "Error: no index named 'nowhere' is served here; served: films, people"


def test_reload_says_what_it_did(api: Threaded) -> None:
    same = at(api, "reload", "people")
    assert same.stdout == "index 'people': version v1 is served already\n"
    assert same.stderr.startswith("evidence vectors: cannot be used: vectors.faiss: size or digest differs")
    api.opener.table["people"] = described("people", version="v2")
    done = at(api, "reload", "people")
    assert done.stdout.startswith("index 'people': version v1 -> v2; opened in 0.")
    forced = at(api, "reload", "people", "--force", "--json")
    told = json.loads(forced.stdout)
    assert (told["reloaded"], told["previous_version"], told["index"]["version"]) == (True, "v2", "v2")


def test_given_titles_are_scored_in_their_order_or_the_best_first(api: Threaded, tmp_path: Path) -> None:
    done = at(api, "score", "author", "Macbeth", "Hamlet", "w " * 21)
    assert done.stderr == ""
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert rows == [
        ["Macbeth", "-7.000000", "0.333333", "2", "Q1,Q2", "0.750000,0.250000"],
        ["Hamlet", "-6.000000", "0.333333", "2", "Q1,Q2", "0.750000,0.250000"],
        ["w " * 21, "", "", "22", "", ""],
    ]
    file = tmp_path / "titles.txt"
    file.write_text("Macbeth\n\n  Hamlet \n", encoding="utf-8")
    best = at(api, "score", "author", "--titles", file, "--best-first", "--json")
    assert [json.loads(line)["title"] for line in best.stdout.splitlines()] == ["Hamlet", "Macbeth"]
    piped = at(api, "score", "author", "--titles", "-", stdin="Macbeth\nHamlet\n")
    assert [line.split("\t")[0] for line in piped.stdout.splitlines()] == ["Macbeth", "Hamlet"]


def test_titles_that_cannot_be_read_are_told_by_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "titles.txt"
    file.write_bytes(b"Hamlet\n\xff\n")
    asked = ("score", "x", *NOBODY, "--titles")
    assert refused(*asked, file, code=1) == f"Error: {file}, line 2: not valid UTF-8"
    lost = tmp_path / "none"
    assert refused(*asked, lost, code=1) == f"Error: {lost}: cannot be read: No such file or directory"
    assert "titles: must be 1 to 10000, got 0" in refused(*asked, "-", stdin="\n \n")


def test_a_query_by_shortlist_shows_probabilities(api: Threaded) -> None:
    done = at(api, "query", "hamlet", "--method", "shortlist", "--shortlist-size", "5", "-k", "1")
    assert done.stdout.split("\t")[5:] == ["-1.500000", "0.500000", "-1.500000", "\n"]
    asked = ("--decoder", "disc", "--vector-weight", "2", "--shortlist-query", "ham")
    asked = (*asked, "--title-weight", "3", "--json")
    document = json.loads(at(api, "query", "hamlet", *asked).stdout)
    assert (document["method"], document["num_scored"], document["shortlist_size"]) == ("auto", 3, 2)


def test_a_withheld_answer_is_said_beside_the_lines(api: Threaded) -> None:
    done = at(api, "query", "x", "--method", "disc", "--min-mass", "1")
    said = "no match: 'x': in the catalogue with probability 0.25, below --min-mass 1\n"
    assert (done.stdout, done.stderr) == ("", said)


def test_what_fails_in_a_stream_is_named_and_the_rest_is_answered(api: Threaded) -> None:
    asked = ("query", "fine", "word " * 200, "--stream", "--json", "--address", api.server.address)
    done = run(cli, *asked)
    assert done.exit_code == 1
    answers = {document["query"]: document for document in map(json.loads, done.stdout.splitlines())}
    assert answers["fine"]["candidates"]
    assert answers["word " * 200]["error"]["code"] == "INVALID_ARGUMENT"
    assert "200 tokens" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stream_whose_input_is_open_can_be_interrupted(api: Threaded, number: signal.Signals) -> None:
    command = [*GENRET, "query", "-", "--stream", "--address", api.server.address]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"first\t1\t"), "before the next line is sent"
        process.send_signal(number)
        assert (process.wait(60), process.stderr.read()) == (130, b"interrupted\n")


def test_an_interruption_that_breaks_a_lock_is_one_all_the_same(
    api: Threaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal between two steps of a condition's wait leaves its lock open, which is told in its place."""

    def interrupted(*_: Any) -> Iterator[Any]:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            threading.Lock().release()
        yield

    monkeypatch.setattr(RetrievalClient, "retrieve_stream", interrupted)
    asked = ("query", "-", "--stream", "--address", api.server.address)
    assert refused(*asked, code=130, stdin="first\n") == "interrupted"


def test_health_waits_until_a_server_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    with threaded(FakeRetriever(), load=False) as api:
        address = api.server.address
        said = refused("health", "--wait", "0.2", "--address", address, code=1)
        assert said == f"Error: {address} was not ready within 0.2 s"
        api.run(api.server.load())
        assert at(api, "health", "--wait", "60").stdout == "SERVING\n"
        for asked in ("ready", "live"):
            told = at(api, "health", "--json", *(["--live"] if asked == "live" else []))
            assert json.loads(told.stdout) == {"address": address, "asked": asked, "status": "SERVING"}
    monkeypatch.setattr("genret.service.commands.running_server.sys", Terminal)
    said = refused("health", "--wait", "0.2", *NOBODY, code=1)
    assert said.startswith("waiting, at most 0.2 s: no server answers at 127.0.0.1:9: Connection refused")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--wait", "0"), "--wait: must be a positive number of seconds, got 0"),
        (("--wait", "5", "--live"), "--wait: a server is waited for until it is ready; leave --live out"),
        (("--timeout", "nan"), "--timeout: must be a positive number of seconds, got nan"),
        (("--tls-cert", "c.pem"), "--tls-key: must be given: a certificate and its key"),
        (("--tls-key", "c.pem"), "--tls-cert: must be given: a certificate and its key"),
        (("--tls-ca", "missing.pem"), "--tls-ca: missing.pem: No such file or directory"),
        (("--token-file", "missing"), "--token-file: missing: No such file or directory"),
        (("--address", "genret.example:1", "--tls-server-name", ""), "--tls-server-name: must not be empty"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: tuple[str, ...], message: str) -> None:
    assert f"Error: {message}" in refused("health", *arguments)


def test_a_token_is_not_sent_in_plaintext_to_other_machines(tmp_path: Path) -> None:
    for extra in ((), ("--token-file", str(tmp_path / "token"))):
        (tmp_path / "token").write_text("secret\n")
        asked = ("query", "x", "--address", "genret.example:1", *extra)
        said = refused(*asked, env={"GENRET_TOKEN": "secret"})
        assert "--token-file: 'genret.example' is another machine" in said
        assert "secret" not in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no token"),
        (" \n", "holds no token"),
        ("two words", "holds more than a token; of `genret token new` keep the first line"),
        ("secret\nread sha256:00\n", "holds more than a token; of `genret token new` keep the first line"),
        ("é", "must be printable ASCII without blanks, and not empty"),
    ],
)
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "token").write_text(content)
    said = refused("health", "--token-file", tmp_path / "token")
    assert "Error: --token-file: " in said
    assert message in said


def test_commands_speak_tls_and_show_tokens(tmp_path: Path) -> None:
    ca = Authority(tmp_path / "ca")
    mine = ca.issue("me", client=True)
    read, admin = new_token(), new_token()
    tokens = tokens_in(tmp_path, line_of(Scope.READ, read), line_of(Scope.ADMIN, admin))
    (tmp_path / "admin").write_text(admin + "\n")
    options: dict[str, Any] = {"tls": ca.server_tls(client_ca=ca.ca_file), "token_file": tokens}
    with threaded(FakeRetriever(), **options) as api:
        reach = (
            *("--address", f"localhost:{api.server.port}", "--tls-ca", ca.ca_file),
            *("--tls-cert", mine.certificate, "--tls-key", mine.key),
        )
        assert genret("health", *reach).stdout == "SERVING\n", "health asks for no token"
        stranger = refused("query", "hamlet", *reach, code=1)
        assert stranger.endswith("; name a token with --token-file, or in GENRET_TOKEN")
        reader = {"GENRET_TOKEN": read}
        assert genret("query", "hamlet", *reach, env=reader).stdout.startswith("hamlet\t1\t")
        refused("reload", *reach, env=reader, code=1)
        file = ("--token-file", tmp_path / "admin")  # which goes first
        genret("reload", *reach, *file, env=reader)
        answered = genret("answer", "hamlet", "--schema-name", "any", *reach, *file)
        assert json.loads(answered.stdout) == {"title": "Hamlet"}


def test_a_handshake_that_fails_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    ca, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other", name="another CA")
    with threaded(FakeRetriever(), tls=ca.server_tls()) as api:
        # Of localhost gRPC tells of one of the addresses.
        exact, vague = (f"{host}:{api.server.port}" for host in ("127.0.0.1", "localhost"))
        trusted = "tls_ca (--tls-ca) names the authorities to trust"
        for address, reach, advice in (
            (exact, ("--tls-ca", str(other.ca_file)), trusted),
            (exact, ("--tls-ca", str(other.ca_file), "--wait", "1"), trusted),
            (
                exact,
                ("--tls-ca", str(ca.ca_file), "--tls-server-name", "elsewhere"),
                "tls_server_name what the server is called there",
            ),
            (exact, (), "it may encrypt (tls, --tls), or want a certificate of its clients"),
            (vague, (), "it may encrypt (tls, --tls"),
        ):
            command = [*GENRET, "health", "--address", address, *reach]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1
            # Of a name that does not fit, and of nothing else, gRPC writes a line whatever its verbosity is.
            said = [line for line in done.stderr.splitlines() if "No match found for server name" not in line]
            *told, line = [
                line for line in said if not line.startswith("WARNING: All log messages before absl")
            ]
            assert [one.split(":")[0] for one in told] == ["waiting, at most 1 s"] * ("--wait" in reach)
            assert line.startswith(f"Error: no server answers at {address}: ")
            assert advice in line
