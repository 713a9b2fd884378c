"""Measures a model by hits@k of entities under the catalogue constraint, or an encoder by its vectors.

Decoding is the service's own: the trie of all titles and aliases, the token tree, beam search, and a
log-sum-exp over the surface forms of an entity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
import torch

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import BeamParams
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.loaded_model import Limits
from genret.retrieval.noise import shorten, typo
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.training.dataset import check_markup, fit_prompt
from genret.retrieval.training.training_data import TrainingEntity, TrainingQuery
from genret.retrieval.types import Mention
from genret.retrieval.vectors.embedder import TextEmbedder

_MAX_K = 10
_BEAMS = 20  # rows asked for; titles and aliases of one entity share them
_QUERIES_PER_BATCH = 32
_PROBES = 300
# Sentences around a mention; none of them is among the generator's.
_FRAMES = (
    ("Yesterday the newspapers wrote about", "at length"),
    ("She had always been interested in", "and told us so"),
    ("In the second chapter", "comes up again"),
)


@dataclass(frozen=True, slots=True)
class Hits:
    """Shares of queries whose entity is first, and among the first ten, and the number of queries."""

    hits_at_1: float
    hits_at_10: float
    num_queries: int

    def __str__(self) -> str:
        return f"hits@1 {self.hits_at_1:.3f}  hits@10 {self.hits_at_10:.3f}  ({self.num_queries} queries)"

    def to_json(self) -> dict[str, float | int]:
        """Return the fields, shares rounded to four digits."""
        return {
            "hits_at_1": round(self.hits_at_1, 4),
            "hits_at_10": round(self.hits_at_10, 4),
            "num_queries": self.num_queries,
        }


def count_hits(rankings: Sequence[Sequence[str]], queries: Sequence[TrainingQuery]) -> Hits:
    """Compare rankings of entity ids, best first, with the labels of at least one query."""
    pairs = list(zip(rankings, queries, strict=True))
    first = sum(ranking[:1] == [query.entity_id] for ranking, query in pairs)
    ten = sum(query.entity_id in ranking[:_MAX_K] for ranking, query in pairs)
    return Hits(first / len(pairs), ten / len(pairs), len(pairs))


class TitleRows:
    """Titles and aliases as token rows with their trie, built on first use and kept for every measurement."""

    def __init__(
        self, tokenizer: TextTokenizer, config: CheckpointConfig, entities: Sequence[TrainingEntity]
    ) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self._entities = entities
        self._trie: TitleTrie | None = None

    @cached_property
    def owners(self) -> dict[tuple[int, ...], list[str]]:
        """Token row of every surface form -> the entities that have it."""
        surfaces = [(surface, entity.entity_id) for entity in self._entities for surface in entity.surfaces]
        rendering = self.config.rendering or Rendering()
        rows = self.tokenizer.encode_titles([surface for surface, _ in surfaces], rendering)
        owners: dict[tuple[int, ...], list[str]] = {}
        for row, (_, entity_id) in zip(rows, surfaces, strict=True):
            if row is not None and self.tokenizer.unknown_id not in row[:-1]:  # as in an index
                owners.setdefault(tuple(row), []).append(entity_id)
        return owners

    def trie(self, vocab_size: int, device: torch.device) -> TitleTrie:
        """Return the trie of all rows, for the one model that they are measured with."""
        if self._trie is None:
            self._trie = TitleTrie.from_rows(self.owners, vocab_size, device)
        return self._trie


def measure_hits(model: Any, titles: TitleRows, queries: Sequence[TrainingQuery]) -> Hits:
    """Rank the entities for every query with the model (`rank_entities`) and count hits."""
    return count_hits(rank_entities(model, titles, queries), queries)


@torch.no_grad()
def rank_entities(
    model: Any, titles: TitleRows, queries: Sequence[TrainingQuery], prompt: str | None = None
) -> list[list[str]]:
    """Return entity ids, best first, for every query put through a template (None: the default one).

    A query that is too long for the model loses its end, and a title that is too long is not found; the
    service would refuse the one and leave out the other.

    The training mode and the attention implementation of the model (a `transformers.PreTrainedModel`,
    float32) are restored.
    """
    training, attention = model.training, model.config._attn_implementation
    try:
        return _rank(HFLanguageModel(model), titles, queries, prompt)
    finally:
        model.set_attn_implementation(attention)
        model.train(training)


def _rank(
    model: HFLanguageModel, titles: TitleRows, queries: Sequence[TrainingQuery], prompt: str | None
) -> list[list[str]]:
    tokenizer = titles.tokenizer
    trie = titles.trie(model.vocab_size, model.device)
    template = titles.config.prompt(prompt)
    limits = Limits.of(model)
    longest = limits.prompt_tokens(trie.max_depth)
    if longest is not None:
        check_markup(template, tokenizer, longest)
    prompts = [fit_prompt(template, tokenizer, query.text, longest) for query in queries]
    room = [limits.room(len(ids)) for ids in prompts]
    params = BeamParams(k=_BEAMS, beam_size=_BEAMS)
    rankings: list[list[str]] = [[] for _ in queries]
    by_length = sorted(range(len(queries)), key=lambda i: len(prompts[i]))  # little padding in a batch
    for begin in range(0, len(by_length), _QUERIES_PER_BATCH):
        batch = by_length[begin : begin + _QUERIES_PER_BATCH]
        session = model.prefill([prompts[i] for i in batch])
        results = beam_search(session, trie, [params] * len(batch), room=[room[i] for i in batch])
        for i, result in zip(batch, results, strict=True):
            if not isinstance(result, BeamResult):  # only a cancelled query ends in an error
                raise result
            rankings[i] = _by_entity(result, titles.owners)
    return rankings


def _by_entity(result: BeamResult, owners: Mapping[tuple[int, ...], Sequence[str]]) -> list[str]:
    mass: dict[str, float] = {}
    for hypothesis in result.hypotheses:
        for entity_id in owners[hypothesis.token_ids]:
            mass[entity_id] = mass.get(entity_id, 0.0) + math.exp(hypothesis.logprob)
    return sorted(mass, key=lambda entity_id: -mass[entity_id])


def noise_probes(entities: Sequence[TrainingEntity], seed: int) -> dict[str, list[TrainingQuery]]:
    """Return queries made from the catalogue itself, by kind: what the model was taught, not unseen text.

    Up to 300 each of: the title as written, an alias as written, the title with one typo in lower case, the
    description as written, and a part of the description.
    """
    random = Random(seed)
    titles, aliased, described = (
        random.sample(some, min(_PROBES, len(some)))
        for some in (
            list(entities),
            [entity for entity in entities if entity.aliases],
            [entity for entity in entities if entity.description],
        )
    )

    def ask(pairs: Iterable[tuple[str, TrainingEntity]]) -> list[TrainingQuery]:
        return [TrainingQuery(text, entity.entity_id, "dev") for text, entity in pairs]

    probes = {
        "exact title": ask((e.title, e) for e in titles),
        "alias": ask((random.choice(e.aliases), e) for e in aliased),
        "title with a typo": ask((typo(e.title, random).lower(), e) for e in titles),
        "description": ask((e.description, e) for e in described),
        "part of description": ask((shorten(e.description, random, min_words=6), e) for e in described),
    }
    return {name: asked for name, asked in probes.items() if asked}


def mention_probes(
    entities: Sequence[TrainingEntity], config: CheckpointConfig, seed: int
) -> list[TrainingQuery]:
    """Return up to 300 titles and aliases inside sentences, as texts of the mention template.

    A bracketed addition to a title ("Mercury (planet)") is left out, as in running text; three words of the
    description stand nearby and can tell such namesakes apart.
    """
    random = Random(seed)
    template = config.prompt(config.mention_prompt)
    probes = []
    for entity in random.sample(list(entities), min(_PROBES, len(entities))):
        left, right = random.choice(_FRAMES)
        clue = " ".join(entity.description.split()[:3])
        surface = random.choice(entity.surfaces).split(" (")[0]
        mention = Mention(surface, left=left, right=f"{right} ({clue})" if clue else right)
        probes.append(TrainingQuery(template.mention_query(mention), entity.entity_id, "dev"))
    return probes


def nearest_rankings(
    embedder: TextEmbedder,
    entities: Sequence[TrainingEntity],
    queries: Sequence[TrainingQuery],
    training_queries: Sequence[TrainingQuery] = (),
) -> list[list[str]]:
    """Rank entities by their most similar text: titles, aliases, descriptions and training queries."""
    texts = searchable_texts(entities, training_queries)
    vectors = embedder.embed_texts([text for entity in entities for text in texts[entity.entity_id]])
    counts = [len(texts[entity.entity_id]) for entity in entities]
    begins = np.cumsum([0, *counts[:-1]])
    rankings = []
    for begin in range(0, len(queries), _QUERIES_PER_BATCH):
        batch = [query.text for query in queries[begin : begin + _QUERIES_PER_BATCH]]
        alike = np.maximum.reduceat(embedder.embed_queries(batch) @ vectors.T, begins, axis=1)
        best = np.argsort(-alike, axis=1, kind="stable")[:, :_MAX_K]
        rankings += [[entities[i].entity_id for i in row] for row in best]
    return rankings


def searchable_texts(
    entities: Sequence[TrainingEntity], queries: Sequence[TrainingQuery]
) -> dict[str, list[str]]:
    """Entity id -> titles, aliases, description and queries."""
    texts = {e.entity_id: [text for text in (*e.surfaces, e.description) if text] for e in entities}
    for query in queries:
        texts[query.entity_id].append(query.text)
    return texts
