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
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

import click

from genret.retrieval.command_options import described_option
from genret.retrieval.defaults import default_encoder_dir, sample_catalogue, sample_queries, sample_ranking
from genret.retrieval.errors import GenretError
from genret.service.commands.answer import as_panel
from genret.service.commands.render import as_table, show

if TYPE_CHECKING:
    from genret.service.client import RetrievalClient

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
_READY_TIMEOUT_S = 180


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

    temporary = tempfile.TemporaryDirectory(prefix="genret-demo-") if folder is None else nullcontext(folder)
    with temporary as place:
        index = Path(place) / "sample.index"
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
    told: Queue[str] = Queue()
    listener = threading.Thread(target=_relay, args=(process, told), daemon=True)
    listener.start()
    started = time.monotonic()
    try:
        try:
            address = told.get(timeout=_READY_TIMEOUT_S)
        except Empty:
            address = ""
        waited = f"{time.monotonic() - started:.1f} s"
        if not address:
            raise GenretError(f"the server was not ready after {waited}; its own words are above")
        click.echo(f"(ready after {waited})")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join(timeout=5)


def _relay(process: subprocess.Popen[str], told: Queue[str]) -> None:
    """Copy a server's standard error to our own; tell its address once ready, and "" in the end."""
    with process.stderr as lines:  # type: ignore[union-attr]  # a pipe
        for line in lines:
            click.echo(line, nl=False, err=True)
            if " ready on " in line:
                told.put(line.split(" ready on ", 1)[1].split()[0].rstrip(":;,"))
    told.put("")


def _show(client: RetrievalClient, queries: tuple[str, ...], k: int) -> None:
    from genret.retrieval.types import RetrieveRequest

    for query in queries:
        show(as_table(query, client.retrieve(RetrieveRequest(query, k=k))))
        disc = client.retrieve(RetrieveRequest(query, k=k, method="disc", seed=1)).result
        found = ", ".join(f"{one.title} {one.probability or 0.0:.0%}" for one in disc.candidates)
        click.echo(f"16 samples by DISC: {found or 'no match'}; in the catalogue: {disc.mass or 0.0:.0%}\n")


def _show_json(client: RetrievalClient, queries: tuple[str, ...]) -> None:
    from genret.retrieval.answers.answer_types import AnswerRequest

    click.echo(
        "\nAs JSON, where x-genret-index makes a string a title of the catalogue, here the likeliest one:\n"
    )
    for name, value in SCHEMA["properties"].items():
        click.echo(f"  {name}: {json.dumps(value)}")
    for query in queries:
        click.secho(f"\n{query}", bold=True)
        show(as_panel(client.answer(AnswerRequest(query, SCHEMA, shortlist=1))))
