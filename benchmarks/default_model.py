"""The default model and encoder against BM25 on the sample queries, and on probes made from the catalogue.

    python benchmarks/default_model.py [--model DIR] [--encoder DIR] [--json FILE]

One process, one machine, the same queries for every row. "encoder" and "bm25" see titles,
aliases and descriptions; "+ train queries" means that they see, in addition, the training queries.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import torch
from harness.bm25 import bm25_rankings
from harness.report import FILE, FOLDER, benchmark
from harness.sample_data import DATA, SMALL_MODEL
from harness.timing import timed

from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer
from genret.retrieval.training.quality import (
    Hits,
    TitleRows,
    count_hits,
    mention_probes,
    nearest_rankings,
    noise_probes,
    rank_entities,
)
from genret.retrieval.training.training_data import TrainingQuery, read_catalogue, read_queries
from genret.retrieval.training.training_run import load_model
from genret.retrieval.vectors.encoder import EncoderEmbedder

PROBE_SEED = 2026


@benchmark("torch", "bm25s")
@click.option("--model", type=FOLDER, default=SMALL_MODEL)
@click.option("--encoder", type=FOLDER, default=DATA / "default-encoder")
@click.option("--catalogue", type=FILE, default=DATA / "catalogue.tsv")
@click.option("--queries", type=FILE, default=DATA / "queries.tsv")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Compare the default model and encoder with BM25."""
    torch.set_num_threads(1)
    entities = read_catalogue(options.catalogue)
    queries = read_queries(options.queries, entities)
    training = [query for query in queries if query.split == "train"]
    sets: dict[str, list[TrainingQuery]] = {
        split: [query for query in queries if query.split == split] for split in ("dev", "test")
    }
    sets.update(noise_probes(entities, PROBE_SEED))

    model = load_model(str(options.model))
    tokenizer, config = TextTokenizer.load(options.model), CheckpointConfig.load(options.model)
    titles = TitleRows(tokenizer, config, entities)
    encoder = EncoderEmbedder(options.encoder)
    systems = {
        "default model": lambda asked: rank_entities(model, titles, asked),
        "encoder": lambda asked: nearest_rankings(encoder, entities, asked),
        "encoder + train queries": lambda asked: nearest_rankings(encoder, entities, asked, training),
        "bm25": lambda asked: bm25_rankings(entities, asked),
        "bm25 + train queries": lambda asked: bm25_rankings(entities, asked, training),
    }
    found: dict[str, dict[str, Hits]] = {}
    click.echo(
        f"{'':20}{'queries':>8}" + "".join(f"{name:>26}" for name in systems) + "   (hits@1 / hits@10, %)"
    )
    for title, asked in sets.items():
        cells, found[title] = [], {}
        for name, rank in systems.items():
            found[title][name] = hits = count_hits(rank(asked), asked)
            cells.append(f"{100 * hits.hits_at_1:.1f} / {100 * hits.hits_at_10:.1f}")
        click.echo(f"{title:20}{len(asked):>8}" + "".join(f"{cell:>26}" for cell in cells))
    mentions = mention_probes(entities, config, PROBE_SEED)
    ranked = rank_entities(model, titles, mentions, config.mention_prompt)
    hits = count_hits(ranked, mentions)
    found["mention in context"] = {"default model": hits}
    click.echo(f"{'mention in context':20}{len(mentions):>8}{hits.hits_at_1:>18.1%} / {hits.hits_at_10:.1%}")

    single = timed(lambda: [rank_entities(model, titles, [query]) for query in sets["dev"][:20]])
    embedded = timed(lambda: [encoder.embed_queries([query.text]) for query in sets["dev"]])
    num_bytes = (options.model / "model.safetensors").stat().st_size
    parameters = sum(p.numel() for p in model.parameters())
    click.echo(
        f"\n{parameters / 1e6:.2f} M parameters, {num_bytes / 1e6:.1f} MB of weights\n"
        f"{1000 * single.wall_s / 20:.0f} ms a query, 20 beams, one at a time, 1 thread\n"
        f"{1000 * embedded.wall_s / len(sets['dev']):.2f} ms a query for the encoder's vector"
    )
    counted = {title: {name: hits.to_json() for name, hits in row.items()} for title, row in found.items()}
    return {"hits": counted, "parameters": parameters, "weight_bytes": num_bytes}


if __name__ == "__main__":
    main()
