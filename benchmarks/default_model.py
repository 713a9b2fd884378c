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
from harness.report import FILE, FOLDER, benchmark, shown
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
    found: dict[str, dict[str, Hits]] = {
        title: {name: count_hits(rank(asked), asked) for name, rank in systems.items()}
        for title, asked in sets.items()
    }
    mentions = mention_probes(entities, config, PROBE_SEED)
    ranked = rank_entities(model, titles, mentions, config.mention_prompt)
    found["mention in context"] = {"default model": count_hits(ranked, mentions)}
    single = timed(lambda: [rank_entities(model, titles, [query]) for query in sets["dev"][:20]])
    embedded = timed(lambda: [encoder.embed_queries([query.text]) for query in sets["dev"]])
    figures = {
        "hits": {title: {name: hits.to_json() for name, hits in row.items()} for title, row in found.items()},
        "parameters": sum(p.numel() for p in model.parameters()),
        "weight_bytes": (options.model / "model.safetensors").stat().st_size,
        "query_ms": 1000 * single.wall_s / 20,
        "embedding_ms": 1000 * embedded.wall_s / len(sets["dev"]),
    }
    return shown("default model", figures)


if __name__ == "__main__":
    main()
