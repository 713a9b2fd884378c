"""Weighing a model: a ranking of an index with the candidates and log P(e | q) of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval.checkpoint_fingerprint import folder_fingerprint
from retrieval.evidence.evidence import Evidence
from retrieval.evidence.making import EvidenceProgress
from retrieval.index.reader import Index
from retrieval.model_opening import load_model
from retrieval.prompts import CheckpointConfig
from retrieval.ranking.made_queries import NUM_QUERIES
from retrieval.ranking.query_sets import made_set
from retrieval.ranking.ranker import Ranker
from retrieval.ranking.rankings import NO_MODEL, Rankings
from retrieval.ranking.tune import Tuned, tune
from retrieval.ranking.tuning import Decode, Scored
from retrieval.retriever import Retriever
from retrieval.text import TextTokenizer

# Of a model as many entities are asked as `auto` asks where a request does not say.
_BEAMS, _MOST = 10, 1000
# A build fits its ranking without a model to queries made by seed 0: with others both are measured fairly.
_SEED = 1


def decoder_of(retriever: Retriever) -> Decode:
    """Return what gives the candidates of `auto` with log P(e | q)."""
    entities = retriever.index.entities

    def decode(queries: Sequence[str]) -> list[Scored]:
        found = []
        for result in retriever.retrieve(queries, _MOST, "auto", beam_size=_BEAMS):
            numbers = entities.find([candidate.entity_id for candidate in result.candidates])
            logprobs = np.array([candidate.logprob for candidate in result.candidates], np.float64)
            found.append((numbers, logprobs))
        return found

    return decode


def weigh_model(
    index: Index,
    evidence: Evidence,
    rankings: Rankings,
    model: str | Path,
    num_threads: int,
    progress: EvidenceProgress,
    prompt: str | None = None,
) -> tuple[str, Tuned]:
    """Fit a ranking for a model to queries made from the catalogue, as `genret tune --model` does by itself.

    Args:
        index: The index; stays open.
        evidence: Its evidence.
        rankings: Those there are: what the model sees is chosen by the one without a model.
        model: Checkpoint directory or hub id.
        num_threads: Torch threads on a CPU.
        progress: Told about every step.
        prompt: Template the model is asked with; None: its default one.

    Returns:
        The model's fingerprint, and what was fitted.

    Raises:
        InputError: too few queries find their entity.
        IndexMismatchError: the index was built for another tokenizer or rendering.
        ModelError: the model cannot be loaded, or the encoder of the vectors fails.
    """
    progress.phase("loading the model")
    tokenizer = TextTokenizer.load(model)
    folder = Path(tokenizer.source)  # of a hub id, where it was fetched to
    fingerprint = folder_fingerprint(folder)
    before, _ = rankings.of(fingerprint)
    alone, _ = rankings.of(NO_MODEL)
    config = CheckpointConfig.load(folder).with_prompt(prompt)
    loaded = load_model(model, "auto", "auto", num_threads, trust_remote_code=False)
    ranker = Ranker(evidence, before, alone)
    retriever = Retriever(index, loaded, tokenizer, config, ranker=ranker)
    made = made_set(index, evidence, NUM_QUERIES[0], _SEED)
    return fingerprint, tune([made], evidence, decoder_of(retriever), before, progress, seed=_SEED)
