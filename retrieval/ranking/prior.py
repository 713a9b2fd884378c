"""Computes the prior of a model: the probability of every entity after queries without content.

A model that was not trained on a catalogue prefers short and common titles, whatever is asked. The prior,
log P(e | queries without content), tells by how much, and the ranking divides it out with a fitted weight
("Calibrate before use", Zhao et al. 2021; "Surface form competition", Holtzman et al. 2021).
"""

from __future__ import annotations

import json
import math
import time

import numpy as np

from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.language_model import LanguageModel
from genret.retrieval.errors import EvidenceMissingError, GenretError, IndexMismatchError, ModelError
from genret.retrieval.index.priors import Prior
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.loaded_model import Limits
from genret.retrieval.methods.decoded_methods import Asked, log_sum
from genret.retrieval.methods.scored_methods import EntityScorer, limited_runs
from genret.retrieval.progress import StepProgress, duration
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.ranking.ranker import usable_prior
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import RetrieveRequest

# Queries by which nobody means an entity; two, because each calls up some titles of its own.
NULL_QUERIES = ("something", "N/A")
# Titles and aliases that are scored together behind each query.
_FORMS_AT_ONCE = 512


def null_prompts(config: CheckpointConfig, tokenizer: TextTokenizer) -> list[list[int]]:
    """Return the token ids of the queries without content in a checkpoint's default template."""
    template = config.prompt(None)
    return [template.encode(tokenizer, query) for query in NULL_QUERIES]


def prompts_digest(prompts: list[list[int]]) -> str:
    """Return a digest that identifies the template, the queries and the tokenizer."""
    return digest_bytes(json.dumps(prompts).encode("ascii"))


def begun_prior(
    index: Index, model: str, prompts: list[list[int]], title_weight: float, progress: StepProgress
) -> Prior:
    """Return a prior for `complete_prior` to continue: that of the index, if it was computed alike.

    `model` is the fingerprint of the model, `prompts` are its `null_prompts`, and `title_weight` is the
    weight of a title against an alias where entities share a form.
    """
    digest = prompts_digest(prompts)
    logprobs = np.full(index.num_entities, np.nan, np.float32)
    try:
        found = usable_prior(index, model, digest)
        if found.title_weight == title_weight:
            logprobs[:] = found.logprobs
    except (EvidenceMissingError, IndexMismatchError):  # none with these prompts: all is computed
        pass
    except GenretError as error:
        progress.note(f"the prior is computed anew, because it cannot be used: {error}")
    return Prior(model, NULL_QUERIES, digest, title_weight, logprobs)


def complete_prior(
    prior: Prior, index: Index, model: LanguageModel, prompts: list[list[int]], progress: StepProgress
) -> None:
    """Compute what is missing of a prior, in place; an interruption keeps what is done.

    `prior` comes from `begun_prior`, `prompts` are the model's `null_prompts`.

    Raises:
        ModelError: the model returned broken logits.
    """
    missing = np.flatnonzero(np.isnan(prior.logprobs))
    forms = index.forms_per_entity
    total, counts = int(forms[missing].sum()), index.manifest.counts
    if not total:
        return
    progress.phase("computing the prior", total)
    progress.note(
        f"the prior: {len(missing):,} entities, {total:,} titles and aliases of about "
        f"{round(total * counts.tokens / counts.postings):,} tokens, behind each of {len(prompts)} queries "
        "without content"
    )
    scorer, limits, begun, done = EntityScorer(index), Limits.of(model), time.monotonic(), 0
    asked = [
        Asked(RetrieveRequest(query, title_weight=prior.title_weight), room=limits.room(len(prompt)))
        for query, prompt in zip(prior.queries, prompts, strict=True)
    ]
    try:
        session = model.prefill(prompts)
        for chunk in limited_runs(missing.tolist(), lambda entity: int(forms[entity]), _FORMS_AT_ONCE):
            every = scorer.score(session, asked, [chunk] * len(prompts), [{}] * len(prompts))
            tallies = [scored.tallies for scored in every if not isinstance(scored, DecodingCancelledError)]
            prior.logprobs[chunk] = [
                log_sum([mine[entity].logprob for mine in tallies if entity in mine]) - math.log(len(prompts))
                for entity in chunk
            ]
            first, done = not done, done + int(forms[chunk].sum())
            left = duration((time.monotonic() - begun) * (total - done) / done)
            if first and done < total:
                progress.note(f"the prior: about {left} left")
            told = f"{done:,} of {total:,} titles and aliases, {left} left"
            progress.advance(done, told, tells_left=True)
    except InvalidLogitsError as error:
        raise ModelError(str(error)) from error
