"""`genret serve`: options in, a running server out."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from retrieval.errors import InputError
from retrieval.options import SHOWN, model_options
from service.commands.usage import usage_error
from service.configuration.config import (
    DEFAULT_FILTER_CACHE_MIB,
    DEFAULT_GRAMMAR_CACHE_MIB,
    DEFAULT_HOST,
    DEFAULT_PORT,
    BatchLimits,
    IndexSpec,
    QueueLimits,
    SchemaSpec,
    ServerConfig,
)

if TYPE_CHECKING:
    from service.serving.server import Server

_EXIT_OF_SIGNAL = 128  # plus its number: what a shell says of a process that a signal ended


@click.command("serve")
@click.argument("index", required=False, type=click.Path())
@click.option(
    "--index",
    "named",
    multiple=True,
    metavar="NAME=PATH",
    envvar="GENRET_SERVE_INDEX",
    help="A further index and the name requests use for it. May be given several times.",
    show_envvar=True,
    show_default="INDEX alone",
)
@model_options
@click.option("--host", default=DEFAULT_HOST, help="Name or address to listen on.", **SHOWN)
@click.option("--port", type=int, default=DEFAULT_PORT, help="Port; 0 picks a free one.", **SHOWN)
@click.option(
    "--insecure", is_flag=True, help="Listen beyond this machine without encryption.", show_envvar=True
)
@click.option(
    "--max-batch-size", type=int, default=BatchLimits().max_size, help="Requests per batch.", **SHOWN
)
@click.option(
    "--max-batch-tokens", type=int, default=BatchLimits().max_tokens, help="Work per batch, tokens.", **SHOWN
)
@click.option(
    "--max-delay-ms",
    type=float,
    default=BatchLimits().max_delay_ms,
    help="Longest wait of an idle device for more requests.",
    **SHOWN,
)
@click.option(
    "--max-queue-size",
    type=int,
    default=QueueLimits().max_requests,
    help="Unfinished requests held.",
    **SHOWN,
)
@click.option(
    "--max-queue-tokens",
    type=int,
    default=QueueLimits().max_tokens,
    help="Unfinished work held, tokens; beyond it requests are refused.",
    **SHOWN,
)
@click.option(
    "--filter-cache",
    type=int,
    metavar="MIB",
    default=DEFAULT_FILTER_CACHE_MIB,
    help="Memory for filters kept, MiB for each index; 0 keeps none.",
    **SHOWN,
)
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="NAME=FILE",
    envvar="GENRET_SERVE_SCHEMA",
    help="A JSON Schema that requests may name; compiled at the start. May be given several times.",
    show_envvar=True,
    show_default="none",
)
@click.option(
    "--grammar-cache",
    type=int,
    metavar="MIB",
    default=DEFAULT_GRAMMAR_CACHE_MIB,
    help="Memory for compiled schemas kept, MiB; 0 keeps none.",
    **SHOWN,
)
@click.option(
    "--draft-model",
    help="Checkpoint directory or hub id of a smaller model with the same tokenizer that proposes tokens of "
    "JSON answers.",
    show_default="none",
    show_envvar=True,
)
@click.option("--max-request-seconds", type=float, default=120.0, help="Longest a request may take.", **SHOWN)
@click.option(
    "--lame-duck-seconds",
    type=float,
    default=0.0,
    help="After SIGTERM: how long requests are still taken while health says NOT_SERVING.",
    **SHOWN,
)
@click.option(
    "--drain-seconds", type=float, default=30.0, help="After that: how long running requests have.", **SHOWN
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    help="What is logged to stderr.",
    **SHOWN,
)
def serve_command(
    index: str | None,
    named: tuple[str, ...],
    model: str | None,
    device: str,
    dtype: str,
    threads: int,
    host: str,
    port: int,
    insecure: bool,
    max_batch_size: int,
    max_batch_tokens: int,
    max_delay_ms: float,
    max_queue_size: int,
    max_queue_tokens: int,
    filter_cache: int,
    schemas: tuple[str, ...],
    grammar_cache: int,
    draft_model: str | None,
    max_request_seconds: float,
    lame_duck_seconds: float,
    drain_seconds: float,
    log_level: str,
) -> None:
    """Serve INDEX over gRPC until SIGTERM or Ctrl-C.

    One line on stderr says when the server is ready and where it listens, and one that it has stopped.
    Stopped by a signal it ends with exit code 0; if it was not ready yet, with 130 (Ctrl-C) or 143 (SIGTERM).
    """
    specs = [*((index,) if index else ()), *named]
    if not specs:
        raise click.UsageError("name an index: genret serve INDEX")
    try:
        config = ServerConfig(
            indexes=tuple(IndexSpec.parse(text) for text in specs),
            host=host,
            port=port,
            insecure=insecure,
            batch=BatchLimits(max_batch_size, max_batch_tokens, max_delay_ms),
            queue=QueueLimits(max_queue_size, max_queue_tokens),
            filter_cache_mib=filter_cache,
            schemas=tuple(SchemaSpec.parse(text) for text in schemas),
            grammar_cache_mib=grammar_cache,
            max_request_seconds=max_request_seconds,
            lame_duck_seconds=lame_duck_seconds,
            drain_seconds=drain_seconds,
        )
    except InputError as error:
        raise usage_error(error) from error
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # grpc's C core writes its own lines about errors that are reported here in words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with _signals_before_the_server():
        from service.configuration.sections import ModelSpec
        from service.serving.loading import IndexOpener
        from service.serving.server import Server, serve_until_signalled

        opener = IndexOpener(
            ModelSpec(checkpoint=model, device=device, dtype=dtype, num_threads=threads, draft=draft_model),
            filter_cache_bytes=config.filter_cache_mib * 2**20,
            grammar_cache_bytes=config.grammar_cache_mib * 2**20,
            schemas=config.schemas,
        )

        async def run() -> signal.Signals | None:
            return await serve_until_signalled(
                Server(config, opener.open, device, opener.name_schemas), _say_ready
            )

        stopped_early = asyncio.run(run())
        _say_stopped()
    if stopped_early is not None:
        raise click.exceptions.Exit(_EXIT_OF_SIGNAL + stopped_early)


@contextmanager
def _signals_before_the_server() -> Iterator[None]:
    """Take signals as an early stop until the server takes them itself, which is after heavy imports."""

    def stop(number: int, frame: object) -> None:
        _say_stopped()
        raise SystemExit(_EXIT_OF_SIGNAL + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_stopped() -> None:
    click.echo("genret: stopped", err=True)


def _say_ready(server: Server) -> None:
    described = server.indexes.describe()
    indexes = "; ".join(
        f"index {i.name!r} ({i.num_entities:,} entities, {i.num_rows:,} rows)" for i in described
    )
    model = f"model {described[0].model} on {described[0].device}"
    click.echo(f"genret: ready on {server.address}: {indexes}; {model}", err=True)
