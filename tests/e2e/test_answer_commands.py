"""`genret answer`, and `genret serve` with schemas, as processes, the way a user runs them."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

from tests.checkpoints import make_checkpoint, train_tokenizer
from tests.service.server_process import ENVIRONMENT, GENRET, ServerProcess, genret

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "x-genret-index": "titles"},
        "kind": {"enum": ["work", "city"]},
    },
    "required": ["title", "kind"],
}


@dataclass(frozen=True)
class Assets:
    """What `genret serve` is started with, and a folder for schemas."""

    served: tuple[str, ...]
    folder: Path

    def file(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)


@dataclass(frozen=True)
class Server:
    address: str

    def answer(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return genret("answer", "--address", self.address, *arguments, stdin=stdin)


def refused_to_start(assets: Assets, *options: str) -> str:
    with ServerProcess(*assets.served, *options) as process:
        assert process.exit_code() in (1, 2)
        said = "\n".join(process.lines)
    assert "ready" not in said
    assert "Traceback" not in said
    return said


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, tiny_index: Path) -> Assets:
    return Assets((str(tiny_index), "--model", str(checkpoint)), tmp_path_factory.mktemp("assets"))


@pytest.fixture(scope="module")
def schema(assets: Assets) -> str:
    return assets.file("entity.json", json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def server(assets: Assets, schema: str, checkpoint: Path) -> Iterator[Server]:
    options = ("--schema", f"entity={schema}", "--grammar-cache", "0", "--draft-model", str(checkpoint))
    with ServerProcess(*assets.served, *options) as process:
        yield Server(process.address())
        process.send(signal.SIGTERM)
        assert process.exit_code() == 0


def test_a_pipe_gets_the_document_and_nothing_else(server: Server, schema: str) -> None:
    done = server.answer("--schema", schema, "who wrote hamlet")
    assert (done.returncode, done.stderr) == (0, "")
    jsonschema.validate(json.loads(done.stdout), SCHEMA)
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("method", ["greedy", "sample", "beam", "disc"])
def test_json_has_the_answer_its_entities_and_figures(server: Server, method: str) -> None:
    done = server.answer("--schema-name", "entity", "--method", method, "--json", "who wrote hamlet")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["query"] == "who wrote hamlet"
    assert said["answer"] == json.loads(said["text"])
    jsonschema.validate(said["answer"], SCHEMA)
    assert said["method"] == method
    (found,) = said["entities"]
    assert (found["pointer"], found["index"], found["title"]) == ("/title", "tiny", said["answer"]["title"])
    assert {entity["title"] for entity in found["entities"]} == {found["title"]}
    tokens = said["tokens"]
    assert tokens["total"] > tokens["forced"] >= 0
    assert tokens["forwards"] > 0
    assert said["logprob"] < 0
    assert said["timings_ms"]["total"] >= said["timings_ms"]["decode"] > 0
    assert (tokens["drafted"] > 0) == (method in ("greedy", "sample"))
    assert tokens["accepted"] <= tokens["drafted"]
    assert (said["mass"] is not None) == (method == "disc")
    assert (said["seed"] is not None) == (method in ("sample", "disc"))


def test_a_query_that_fails_does_not_take_the_others_along(server: Server, schema: str) -> None:
    long = "x" * 5000
    done = server.answer("--schema", schema, "-", stdin=f"a\n{long}\nb\n")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr.startswith("Error: 'xxx")


def test_on_a_terminal_entities_and_figures_are_shown(server: Server) -> None:
    if shutil.which("script") is None:
        pytest.skip("needs script(1) for a terminal")
    command = " ".join([*GENRET, "answer", "--address", server.address, "--schema-name", "entity", "metal"])
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "80"},
    )
    assert done.returncode == 0
    for word in ("Entities", "/title", "log P", "forwards"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"type": "strin"}', "#/type: type: expected one of"),
        ("", "#: the schema is not JSON"),
        (b"\xff\xfe\x00", "not valid UTF-8 at byte 1"),
        (b" " * (5 << 20), "at most 4,194,304 bytes"),
        (None, "cannot be read: Is a directory"),
    ],
    ids=["keyword", "empty", "binary", "huge", "folder"],
)
def test_a_bad_schema_is_named_with_its_file(
    server: Server, assets: Assets, content: str | bytes | None, words: str
) -> None:
    file = str(assets.folder) if content is None else assets.file("bad.json", content)
    for more in (("query",), ("--explain-schema",)):
        done = server.answer("--schema", file, *more)
        assert done.returncode == 1
        assert f"Error: {file}: " in done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("query", 2, "name a schema: --schema FILE, or --schema-name NAME"),
        ("--schema-name entity --schema SCHEMA query", 2, "name a schema"),
        ("--schema-name entity", 2, "what is the query?"),
        ("--schema-name entity ' '", 2, "query: must not be empty"),
        ("--schema-name entity --explain-schema", 2, "--explain-schema needs --schema FILE"),
        ("--schema-name entity --max-tokens 0 x", 2, "--max-tokens: must be in [1, 65536]"),
        ("--schema-name other x", 1, "no schema named 'other'; known: entity"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    server: Server, schema: str, line: str, code: int, words: str
) -> None:
    done = server.answer(*shlex.split(line.replace("SCHEMA", schema)))
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_schema_is_explained_without_a_server(schema: str) -> None:
    done = genret("answer", "--schema", schema, "--explain-schema", "--address", "127.0.0.1:9")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "#/type\ttype\tenforced\t"


def test_interrupted_it_stops_in_silence(server: Server) -> None:
    command = [*GENRET, "answer", "--address", server.address, "--schema-name", "entity", "-"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)
    process.stdin.write("first\n" * 64)
    process.stdin.flush()
    json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert json.loads(server.answer("--schema-name", "entity", "metal").stdout)["title"]


def test_a_named_schema_that_cannot_be_used_keeps_the_server_from_starting(assets: Assets) -> None:
    file = assets.file("refused.json", '{"type": "strin"}')
    said = refused_to_start(assets, "--schema", f"broken={file}")
    assert f"Error: {file}: #/type: type: expected one of" in said


def test_a_draft_with_another_tokenizer_is_refused_in_words(assets: Assets) -> None:
    other = make_checkpoint(assets.folder / "other", tokenizer=train_tokenizer(["quite other words"]))
    said = refused_to_start(assets, "--draft-model", str(other))
    assert "Error: " in said
    assert "tokenizer" in said
