"""JSON grammars beside xgrammar and llguidance: first requests, warm masks, real schemas, the test suite.

    python benchmarks/json_grammars.py --json json_grammars.json
    python benchmarks/json_grammars.py --parts classes --tokenizer o200k_base.tokenizer.json
    python benchmarks/json_grammars.py --parts real --real-schemas 200 --seed 1

`classes` walks instances of nine small schemas token by token: a whole first request is compiling the schema,
starting a matcher, and every mask and advance of one instance, with nothing kept from another schema of the
class but what belongs to the tokenizer. `real` walks every instance of real schemas and compares with its
label, `suite` does so with the JSON Schema test suite; `cold` times the first mask of every state of the real
schemas, alone; `cache` measures what grammars kept between requests cost. Engines take turns on the same
work in one process.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import click
from harness.cold_masks import measure_cold_masks, print_cold_masks
from harness.grammar_cache_times import measure_cache
from harness.grammar_classes import measure_classes, print_classes
from harness.grammar_engines import Engine, Llguidance, Ours, TokenizerFile, Xgrammar
from harness.grammar_labels import measure_real, measure_suite, print_labels
from harness.report import announce, command_line, environment, write_json

from genret.decoding.grammar.compile_options import GrammarOptions

_DATA = Path(os.environ.get("GENRET_SHARED_DATA", "../shared/data"))


@click.command()
@click.option(
    "--parts",
    multiple=True,
    type=click.Choice(["classes", "real", "cold", "suite", "cache"]),
    default=("classes", "real", "cold", "suite", "cache"),
    help="What to measure; may be given several times.",
    show_default=True,
)
@click.option(
    "--tokenizer", default="gpt2.tokenizer.json", help="File of the tokenizers/ folder.", show_default=True
)
@click.option("--repeats", default=5, help="Rounds of `classes`.", show_default=True)
@click.option("--instances", default=20, help="Instances per class.", show_default=True)
@click.option("--real-schemas", default=0, help="Real schemas drawn at random; 0: all.", show_default=True)
@click.option("--seed", default=1, help="Of that draw.", show_default=True)
@click.option("--peers/--no-peers", default=True, help="Whether the peers run too.", show_default=True)
@click.option(
    "--peer-seconds", default=30.0, help="Longest a peer may compile one real schema.", show_default=True
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures here.")
def main(
    parts: tuple[str, ...],
    tokenizer: str,
    repeats: int,
    instances: int,
    real_schemas: int,
    seed: int,
    peers: bool,
    peer_seconds: float,
    json_file: Path | None,
) -> None:
    """Measure grammars of JSON Schemas."""
    facts = environment("numpy", "numba", "xgrammar", "llguidance", "jsonschema") | {"tokenizer": tokenizer}
    announce(facts)
    file = TokenizerFile(_DATA / "tokenizers" / tokenizer)
    ours = Ours(file)
    # As a server does once it has loaded what it keeps; of all sides' objects alike.
    gc.collect()
    gc.freeze()
    figures: dict[str, Any] = {}
    if "classes" in parts:
        like_peers = Ours(file, GrammarOptions(property_order="schema"), ours.leaves)
        engines: list[Engine] = [like_peers]
        if peers:
            engines += [Xgrammar(file), Llguidance(file)]
        figures["classes"] = measure_classes(engines, file, repeats, instances)
        print_classes(figures["classes"])
    peer_engines: list[Engine] = (
        [Xgrammar(file), Xgrammar(file, strict=False), Llguidance(file)] if peers else []
    )
    if "real" in parts:
        rows = _DATA / "schemas" / "real_world.dev.jsonl.gz"
        figures["real"] = measure_real([ours, *peer_engines], file, rows, real_schemas, seed, peer_seconds)
        print_labels("real schemas", figures["real"])
    if "cold" in parts:
        rows = _DATA / "schemas" / "real_world.dev.jsonl.gz"
        figures["cold"] = measure_cold_masks(Ours(file).leaves, file, rows)
        print_cold_masks(figures["cold"])
    if "suite" in parts:
        rows = _DATA / "schemas" / "json_schema_test_suite.draft2020-12.jsonl.gz"
        annotating = Ours(file, GrammarOptions(formats="annotate"), ours.leaves)
        figures["suite"] = measure_suite([ours, *peer_engines], annotating, file, rows, peer_seconds)
        print_labels("test suite", figures["suite"])
    if "cache" in parts:
        figures["cache"] = measure_cache(file, ours)
        click.echo(f"cache: {figures['cache']}")
    write_json(json_file, command_line(), facts, figures)


if __name__ == "__main__":
    main()
