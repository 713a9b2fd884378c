"""A ranking fitted to queries made from the catalogue itself, for an index that nobody has tuned."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.errors import InputError
from retrieval.evidence.evidence import Evidence
from retrieval.index.reader import Index
from retrieval.ranking.fitting import Example, fit
from retrieval.ranking.made_queries import make_queries
from retrieval.ranking.model import Provenance, Ranking
from retrieval.ranking.rankings import DEFAULT_RANKING
from retrieval.ranking.tuning import example_of, labelled, quality_of

# With fewer entities nearly every candidate is a namesake or nothing, and two dozen weights mean little.
MIN_ENTITIES = 48
MADE_QUERIES = "made from the catalogue"


def fit_made_queries(
    index: Index,
    evidence: Evidence,
    columns: Sequence[str],
    count: int | None = None,
    seed: int = 0,
) -> Ranking | None:
    """Return the ranking without a model that fits queries made from an index; None for a tiny catalogue.

    The same index and evidence give the same ranking. Its provenance tells how the library's own weights do,
    and how weights fitted to half of the queries do on the other half.

    Args:
        index: The index.
        evidence: Its evidence.
        columns: The columns of texts.
        count: Most queries; None: as `make_queries` has it.
        seed: Of everything random.

    Raises:
        ModelError: the encoder of the vectors fails.
    """
    if index.num_entities < MIN_ENTITIES:
        return None
    made = labelled(make_queries(index, evidence, columns, count, seed))
    examples = [example_of(query, evidence) for query in made]
    told = Provenance(MADE_QUERIES, len(examples), evidence.kinds, seed)
    try:
        metrics = _metrics(examples, told)
        return fit(examples, Provenance(MADE_QUERIES, len(examples), evidence.kinds, seed, metrics))
    except InputError:  # too few queries find their entity
        return None


def _metrics(examples: Sequence[Example], told: Provenance) -> dict[str, float]:
    """Return hits at 1 before and after: of the library's weights, and of weights fitted to other queries."""
    halves = (examples[::2], examples[1::2])
    before = quality_of(DEFAULT_RANKING, examples).hits[0]
    after = [
        quality_of(fit(seen, told), unseen).hits[0] * len(unseen) for seen, unseen in (halves, halves[::-1])
    ]
    return {"hits@1 before": round(before, 4), "hits@1 after": round(sum(after) / len(examples), 4)}
