"""The default model and encoder against BM25 on the sample queries, and on probes made from the catalogue.

    python benchmarks/default_model.py [--model DIR] [--encoder DIR] [--json FILE]

One process, one machine, the same queries for every row. "encoder" and "bm25" see titles,
aliases and descriptions; "+ train queries" means that they see, in addition, the training queries.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import bm25s
import numpy as np
import torch

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
    searchable_texts,
)
from genret.retrieval.training.training_data import (
    TrainingEntity,
    TrainingQuery,
    read_catalogue,
    read_queries,
)
from genret.retrieval.training.training_run import load_model
from genret.retrieval.vectors.encoder import EncoderEmbedder

ROOT = Path(__file__).resolve().parent.parent
PROBE_SEED = 2026
_MAX_K = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "data" / "small-model")
    parser.add_argument("--encoder", type=Path, default=ROOT / "data" / "default-encoder")
    parser.add_argument("--catalogue", type=Path, default=ROOT / "data" / "catalogue.tsv")
    parser.add_argument("--queries", type=Path, default=ROOT / "data" / "queries.tsv")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
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
    print(f"{'':20}{'queries':>8}" + "".join(f"{name:>26}" for name in systems) + "   (hits@1 / hits@10, %)")
    for title, asked in sets.items():
        cells, found[title] = [], {}
        for name, rank in systems.items():
            found[title][name] = hits = count_hits(rank(asked), asked)
            cells.append(f"{100 * hits.hits_at_1:.1f} / {100 * hits.hits_at_10:.1f}")
        print(f"{title:20}{len(asked):>8}" + "".join(f"{cell:>26}" for cell in cells), flush=True)
    mentions = mention_probes(entities, config, PROBE_SEED)
    ranked = rank_entities(model, titles, mentions, config.mention_prompt)
    hits = count_hits(ranked, mentions)
    found["mention in context"] = {"default model": hits}
    print(f"{'mention in context':20}{len(mentions):>8}{hits.hits_at_1:>18.1%} / {hits.hits_at_10:.1%}")

    begin = time.perf_counter()
    for query in sets["dev"][:20]:
        rank_entities(model, titles, [query])
    one_by_one_ms = (time.perf_counter() - begin) / 20 * 1000
    num_bytes = (options.model / "model.safetensors").stat().st_size
    parameters = sum(p.numel() for p in model.parameters())
    print(f"\n{parameters / 1e6:.2f} M parameters, {num_bytes / 1e6:.1f} MB of weights")
    print(f"{one_by_one_ms:.0f} ms a query, 20 beams, one at a time, 1 thread")
    begin = time.perf_counter()
    for query in sets["dev"]:
        encoder.embed_queries([query.text])
    print(
        f"{(time.perf_counter() - begin) / len(sets['dev']) * 1000:.2f} ms a query for the encoder's vector"
    )
    if options.json:
        document = {
            "hits": {t: {n: h.to_json() for n, h in row.items()} for t, row in found.items()},
            "parameters": parameters,
            "weight_bytes": num_bytes,
            "environment": {"python": platform.python_version(), "torch": torch.__version__},
        }
        options.json.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def bm25_rankings(
    entities: Sequence[TrainingEntity],
    queries: Sequence[TrainingQuery],
    training_queries: Sequence[TrainingQuery] = (),
) -> list[list[str]]:
    """Rank entities with bm25s over title, aliases and description, plus training queries where given."""
    texts = searchable_texts(entities, training_queries)
    documents = [" ".join(texts[e.entity_id]) for e in entities]
    retriever = bm25s.BM25()
    retriever.index(bm25s.tokenize(documents, stopwords="en", show_progress=False), show_progress=False)
    asked = bm25s.tokenize([query.text for query in queries], stopwords="en", show_progress=False)
    found, scores = retriever.retrieve(asked, k=min(_MAX_K, len(entities)), show_progress=False)
    return [
        [entities[int(i)].entity_id for i in row[np.asarray(score) > 0]]
        for row, score in zip(found, scores, strict=True)
    ]


if __name__ == "__main__":
    main()
