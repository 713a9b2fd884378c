"""The options of `genret link` by group: what is read, written and run, and with which index and model."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.errors import InputError
from retrieval.linking.documents.corpus import (
    DEFAULT_SHARD_CHARS,
    DEFAULT_SHARD_DOCUMENTS,
    INPUT_FORMATS,
    SPAN_UNITS,
)
from retrieval.linking.flag_groups import Values, flag, flag_group
from retrieval.linking.options import OUTPUT_FORMATS, WorkerOptions
from retrieval.options import DEVICE, DTYPE, ENCODER, MODEL

output_flags = flag_group(
    "output",
    "Output",
    [
        flag(
            "--out",
            required=True,
            type=click.Path(),
            help="A folder of part files; or a name that ends in .parquet or .jsonl: one file, which is made "
            "of parts in NAME.parts in the end.",
        ),
        flag(
            "--format",
            type=click.Choice(OUTPUT_FORMATS),
            help="Of the parts of a folder.",
            show_default="parquet; of one file its name says it",
        ),
        flag(
            "--overwrite",
            is_flag=True,
            help="Replace the output of another run. Only what such a run wrote is deleted.",
        ),
        flag("--keep-parts", is_flag=True, help="Keep NAME.parts when the one file is made."),
        flag("--drop-nil", is_flag=True, help="Leave mentions without an entity out of the output."),
    ],
    dict,
)


input_flags = flag_group(
    "reading",
    "Input",
    [
        flag(
            "--input-format",
            type=click.Choice(INPUT_FORMATS),
            default="auto",
            help="text: a file is a document; lines: a line is one; auto: by the names.",
        ),
        flag("--id-field", default="id", help="Field or column with a document's id."),
        flag("--text-field", default="text", help="Field or column with its text."),
        flag(
            "--mentions-field",
            default="mentions",
            help="Field or column with its marked spans: objects with start, end and optionally id.",
        ),
        flag(
            "--span-unit",
            type=click.Choice(SPAN_UNITS),
            default="codepoint",
            help="What marked spans count.",
        ),
        flag(
            "--max-bad-rows",
            type=click.IntRange(min=0),
            default=0,
            help="Leave out up to this many lines that are no documents; one more ends the run.",
        ),
        flag(
            "--shard-documents",
            type=int,
            default=DEFAULT_SHARD_DOCUMENTS,
            help="Most documents of a shard, which is what is lost at most when a worker is killed.",
        ),
        flag(
            "--shard-chars",
            type=int,
            default=DEFAULT_SHARD_CHARS,
            help="Most characters of a shard; a longer document is linked in parts.",
        ),
    ],
    dict,
)


model_flags = flag_group(
    "model",
    "Index and model",
    [
        flag("--index", required=True, type=click.Path(), help="Index directory."),
        flag(
            "--verify/--no-verify",
            key="verify_digests",
            default=True,
            help="Check the digests of the index's files first.",
        ),
        flag("--model", **MODEL),
        flag("--encoder", **ENCODER),
        flag("--device", **DEVICE),
        flag("--dtype", **DTYPE),
        flag(
            "--threads",
            type=click.IntRange(min=1),
            default=1,
            help="Torch threads of every worker on a CPU.",
        ),
        flag("--batch-size", type=int, default=32, help="Mentions per forward."),
        flag(
            "--cache-entries",
            type=int,
            default=WorkerOptions(index="").cache_entries,
            help="Answers that every worker keeps for mentions put to the model in the same words.",
        ),
    ],
    dict,
)


def _run(values: Values) -> dict[str, object]:
    if values["ray_address"] is not None and values["runner"] != "ray":
        raise InputError("ray_address", "needs --runner ray")
    return dict(values)


run_flags = flag_group(
    "run",
    "Run",
    [
        flag(
            "--runner",
            type=click.Choice(["local", "ray"]),
            default="local",
            help="local: processes of this machine; ray: actors of a Ray cluster, which needs the extra ray.",
        ),
        flag(
            "--workers",
            type=click.IntRange(min=1),
            help="How many link at the same time, each with index and model of its own; 1: this process.",
            show_default="one per usable core; one with a GPU; with Ray what the cluster has room for",
        ),
        flag("--ray-address", help="Ray cluster: auto, or HOST:PORT.", show_default="one is started here"),
        flag(
            "--max-failed",
            type=click.IntRange(min=0),
            help="Mentions that may end by an error before the run does; they are NIL, with their error.",
            show_default="any number",
        ),
        flag(
            "--dry-run",
            is_flag=True,
            help="Read the inputs, say what would be linked and what is done already, and write nothing.",
        ),
        flag("--quiet", is_flag=True, help="No progress, warnings and summary."),
        flag("--json", is_flag=True, help="Print the summary as JSON on standard output."),
    ],
    _run,
)


def worker_options(values: Values, cache_dir: Path | None) -> WorkerOptions:
    """Return how workers compute, as the options of the command say.

    Raises:
        InputError: an option is out of range; it is named.
    """
    given = dict(values)
    cache = None if cache_dir is None else str(cache_dir)
    return WorkerOptions(num_threads=given.pop("threads"), cache_dir=cache, **given)
