"""`genret demo`: the whole way once, with the commands a user would type."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genret.retrieval.command_options import described_option
from genret.retrieval.defaults import default_encoder_dir, sample_catalogue, sample_queries, sample_ranking
from genret.retrieval.errors import GenretError
from genret.service.commands.render import FOLDED, FittedTable

if TYPE_CHECKING:
    from genret.retrieval.types import RetrievalResult
    from genret.service.client import RetrievalClient
    from genret.service.client.reply import AnswerReply

QUERIES = (
    "who painted sunflowers and cut off part of his ear",
    "german city where oktoberfest is held",
    "which noble gas makes up about one percent of the air",
    "movie with marty mcfly and a time travelling delorean",
    "chinese philosopher said to have written the tao te ching",
    "famous math problem that andrew wiles proved in the 1990s",
    "Albret Einstien",
)
JSON_QUERIES = QUERIES[1:3]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "x-genret-index": "titles"},
        "source": {"const": "sample catalogue"},
    },
    "required": ["title", "source"],
}
_READY_TIMEOUT_S = 180.0


@click.command("demo")
@described_option(
    "--dir folder",
    "Keep the index here.",
    click.Path(path_type=Path),
    show_default="a temporary folder",
)
@described_option("-k --k", "Candidates shown per query.", default=3)
@click.argument("queries", nargs=-1)
def demo_command(folder: Path | None, k: int, queries: tuple[str, ...]) -> None:
    """Build the sample index, start a server, answer QUERIES (or seven of ours) by auto and DISC, stop.

    Two of them are answered as JSON, too.
    """
    from genret.service.client import RetrievalClient

    with _folder(folder) as place:
        index = place / "sample.index"
        _run("build", str(sample_catalogue()), "--out", str(index), *_evidence())
        with _server(index) as address:
            click.echo(f"\nAsking {address}, each question in the default way and by DISC:\n")
            with RetrievalClient(address) as client:
                _show(client, queries or QUERIES, k)
                _show_json(client, queries[:2] or JSON_QUERIES)
    click.echo("\nThe server has stopped. Next: README.md, or `genret --help`.")


def _evidence() -> list[str]:
    """Return the options by which the sample gets all of its evidence; vectors need an extra."""
    options = ["--queries", f"{sample_queries()}#train", "--ranking", str(sample_ranking())]
    if find_spec("faiss") is not None:
        options += ["--vectors", f"encoder:{default_encoder_dir()}"]
    return options


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="genret-demo-") as name:
        yield Path(name)


def _command(*arguments: str) -> list[str]:
    click.secho("$ genret " + shlex.join(arguments), bold=True)
    sys.stdout.flush()
    return [sys.executable, "-m", "genret", *arguments]


def _run(*arguments: str) -> None:
    finished = subprocess.run(_command(*arguments), check=False)
    if finished.returncode != 0:
        raise GenretError(f"genret {arguments[0]} ended with exit code {finished.returncode}")


@contextmanager
def _server(index: Path) -> Iterator[str]:
    """Run a server on a free port; yields its address once it is ready and stops it in the end."""
    process = subprocess.Popen(
        _command("serve", str(index), "--port", "0"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the demo's own: a reader of it must not wait for the server
        stderr=subprocess.PIPE,
        text=True,
    )
    ready: list[str] = []
    heard = threading.Event()

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:  # read to the end, so that the server never blocks on a full pipe
            click.echo(line, nl=False, err=True)
            if " ready on " in line:
                ready.append(line.split(" ready on ", 1)[1].split()[0].rstrip(":;,"))
                heard.set()
        heard.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    started = time.monotonic()
    try:
        heard.wait(_READY_TIMEOUT_S)
        if not ready:
            raise GenretError("the server did not become ready; its own words are above")
        click.echo(f"(ready after {time.monotonic() - started:.1f} s)")
        yield ready[0]
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join(timeout=5)


def _show(client: RetrievalClient, queries: tuple[str, ...], k: int) -> None:
    from rich.console import Console

    from genret.retrieval.types import RetrieveRequest

    rows = []
    for query in queries:
        auto = client.retrieve(RetrieveRequest(query, k=k)).result
        disc = client.retrieve(RetrieveRequest(query, k=k, method="disc", seed=1)).result
        rows.append((query, _auto_cell(auto), _disc_cell(disc)))
    columns = [
        (name, FOLDED) for name in ("Query", "auto: the best titles, most by", "disc: share of 16 samples")
    ]
    # Without a terminal rich assumes 80 columns, too few for three of text.
    Console(width=max(Console().width, 110)).print(FittedTable(columns, rows, show_lines=True))


def _show_json(client: RetrievalClient, queries: tuple[str, ...]) -> None:
    from genret.retrieval.answers.answer_types import AnswerRequest

    click.echo(
        "\nAs JSON, where x-genret-index makes a string a title of the catalogue, here the likeliest one:\n"
    )
    for name, value in SCHEMA["properties"].items():
        click.echo(f"  {name}: {json.dumps(value)}")
    for query in queries:
        click.echo(f"\n{query}\n{_json_lines(client.answer(AnswerRequest(query, SCHEMA, shortlist=1)))}")


def _json_lines(reply: AnswerReply) -> str:
    result = reply.result
    lines = [f"  {result.text}"]
    for found in result.entities:
        entities = ", ".join(f"{one.entity_id} ({one.metadata.get('kind', '')})" for one in found.entities)
        lines.append(f"  {found.pointer} is {entities}")
    lines.append(
        f"  {result.num_tokens} tokens, {result.num_forced} of them forced; {result.num_forwards} forwards; "
        f"{reply.total_ms:.0f} ms"
    )
    return "\n".join(lines)


def _auto_cell(result: RetrievalResult) -> str:
    lines = [f"{c.title} {c.probability or 0.0:.0%}, {next(iter(c.shares), '')}" for c in result.candidates]
    if result.nothing_fits is not None:
        lines.append(f"[P(none is meant) = {result.nothing_fits:.2f}]")
    return "\n".join(lines) or "no match"


def _disc_cell(result: RetrievalResult) -> str:
    lines = [f"{c.title} {c.probability or 0.0:.0%}" for c in result.candidates]
    if result.mass is not None:
        error = "" if result.mass_stderr is None else f" ± {result.mass_stderr:.2f}"
        lines.append(f"[P(in catalogue) = {result.mass:.2f}{error}]")
    return "\n".join(lines) or "no match"
