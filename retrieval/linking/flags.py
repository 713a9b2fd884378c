"""The options of `genret link`, by group."""

from __future__ import annotations

import os
from pathlib import Path

import click

from retrieval.errors import InputError
from retrieval.linking.documents.corpus import (
    DEFAULT_SHARD_CHARS,
    DEFAULT_SHARD_DOCUMENTS,
    INPUT_FORMATS,
    SPAN_UNITS,
)
from retrieval.linking.finding.options import CASES, FindOptions
from retrieval.linking.flag_groups import Values, flag, flag_group
from retrieval.linking.options import (
    CANDIDATE_SETS,
    MENTION_SOURCES,
    OUTPUT_FORMATS,
    LinkOptions,
    WorkerOptions,
)

_DTYPES = ["auto", "float32", "bfloat16", "float16", "float64"]


def default_cache_dir() -> Path | None:
    """Return where tables of names are kept: `genret` in the user's folder for caches.

    None for a user without a home, as in some containers: the table is then kept in memory.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # by the XDG specification a relative path there is to be ignored
        return Path(given) / "genret"
    try:
        return Path("~/.cache/genret").expanduser()
    except RuntimeError:
        return None


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


def _find(values: Values) -> FindOptions:
    def limit(name: str) -> int | None:
        return values[name] or None

    return FindOptions(
        case=values["case"],
        min_chars=values["min_chars"],
        max_entities=limit("max_entities"),
        max_short_entities=limit("max_short_entities"),
        stop_words=values["stop_words"],
    )


mention_flags = flag_group(
    "find",
    "Mentions that are found (names of the index in the text; the longest counts)",
    [
        flag(
            "--case",
            type=click.Choice(CASES),
            default="smart",
            help="smart: any letter case where the text has a capital letter or a digit, else only names "
            "written in lower case.",
        ),
        flag(
            "--min-chars", type=int, default=FindOptions().min_chars, help="Shorter names are not looked for."
        ),
        flag(
            "--max-entities",
            type=click.IntRange(min=0),
            default=FindOptions().max_entities,
            help="Names of more entities are not looked for; 0: all are.",
        ),
        flag(
            "--max-short-entities",
            type=click.IntRange(min=0),
            default=FindOptions().max_short_entities,
            help="The same for names of one word with at most 3 characters.",
        ),
        flag(
            "--stop-words",
            default="english",
            help="Names that are one such word alone are not looked for: english, none, or a file with one "
            "word per line.",
        ),
        flag(
            "--cache-dir",
            type=click.Path(file_okay=False, path_type=Path),
            help="Where the index's table of names is kept: it is made once, and all workers share it.",
            show_default="genret in $XDG_CACHE_HOME, else in ~/.cache",
        ),
    ],
    lambda values: (_find(values), values["cache_dir"] or default_cache_dir()),
)
linking_flags = flag_group(
    "linking",
    "Linking",
    [
        flag(
            "--mentions",
            type=click.Choice(MENTION_SOURCES),
            default="auto",
            help="given: the documents mark them; found: names of the index; generated: the model writes the "
            "text again with links in it; auto: given where a document marks any, else found.",
        ),
        flag(
            "--candidates",
            type=click.Choice(CANDIDATE_SETS),
            default="all",
            help="What a mention may be linked to: all entities, or those named so.",
        ),
        flag(
            "--method",
            type=click.Choice(["beam", "disc"]),
            default="beam",
            help="beam: the k most probable titles; disc: samples and their shares.",
        ),
        flag(
            "-k",
            "--k",
            key="k",
            type=int,
            default=5,
            help="Candidates kept per mention, at most 1000.",
        ),
        flag(
            "--beam-size",
            type=int,
            help="beam: live prefixes per step, at most 1000; disc: prefixes per draw, at most 64.",
            show_default="beam: the larger of k and 10; disc: 1",
        ),
        flag("--seed", type=int, default=0, help="disc: the same seed gives the same answers."),
        flag(
            "--prompt",
            help="Template that puts a mention to the model.",
            show_default="the checkpoint's for mentions",
        ),
        flag(
            "--context-chars",
            type=int,
            help="Characters of text on either side of a mention that the model sees.",
            show_default="the template's",
        ),
        flag(
            "--min-logprob",
            type=float,
            help="Mentions whose best candidate has a lower log-probability are NIL.",
            show_default="no limit",
        ),
        flag(
            "--min-probability",
            type=float,
            help="The same for its probability among the titles, in [0, 1].",
            show_default="no limit",
        ),
        flag(
            "--min-mass",
            type=float,
            help="disc: NIL when the model's probability that its answer is in the catalogue is below this, "
            "in [0, 1].",
            show_default="no limit",
        ),
        flag(
            "--adaptive",
            is_flag=True,
            help="disc: what the first draws find invalid is left out of later ones; more are accepted.",
        ),
        flag(
            "--exact",
            is_flag=True,
            help="beam: go on until the list is proven, or --exact-budget is spent.",
        ),
        flag(
            "--exact-budget",
            type=int,
            help="beam: most tokens computed for that, at most 1000000.",
            show_default="1024",
        ),
        flag(
            "--length-penalty",
            type=float,
            default=0.0,
            help="beam: rank by log P / length ** this, in [-4, 4]; above 0 favours long titles.",
        ),
        flag(
            "--aggregate",
            type=click.Choice(["sum", "max"]),
            help="beam: an entity's score is the probability of all of its titles and aliases found, or the "
            "score of the best one.",
            show_default="sum; max with a --length-penalty",
        ),
        flag(
            "--filter",
            help="Link to entities for which this is true: kind = 'city' and population > 100000",
            show_default="all entities",
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
        flag("--model", help="Checkpoint directory or hub id.", show_default="the shipped model"),
        flag("--device", default="auto", help="auto, cpu, cuda, cuda:1, ..."),
        flag("--dtype", type=click.Choice(_DTYPES), default="auto", help="Number type of the model."),
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


def link_options(find: FindOptions, values: Values, drop_nil: bool) -> LinkOptions:
    """Return how mentions are linked, as the options of the command say.

    Raises:
        InputError: an option is out of range; it is named.
    """
    return LinkOptions(find=find, keep_nil=not drop_nil, **values)


def worker_options(values: Values, cache_dir: Path | None) -> WorkerOptions:
    """Return how workers compute, as the options of the command say.

    Raises:
        InputError: an option is out of range; it is named.
    """
    given = dict(values)
    cache = None if cache_dir is None else str(cache_dir)
    return WorkerOptions(num_threads=given.pop("threads"), cache_dir=cache, **given)
