"""What a beam search says of one query."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.types import Hypothesis


@dataclass(frozen=True, slots=True)
class BeamResult:
    """The list of one query.

    Scores are log-probabilities, divided by length ** length_penalty where one was asked for.

    Attributes:
        hypotheses: Distinct rows, best score first; fewer than k when the constraint allows fewer (or when
            the beam lost the others), up to `num_rows` of its goal with one. Rows of probability zero are
            left out.
        certified: Whether the first k are proven to be the exact top-k.
        best_pruned_score: No row that was neither finished nor beaten by a full list can have a larger score:
            the best that a dropped prefix could still have become. -inf when none was dropped; an exact
            search does not count those that the list, of `num_rows` with a goal, had beaten by then.
        num_steps: Decode steps of the batch.
        num_nodes: Tokens computed behind the prompt of this query.
        num_exact_nodes: Those of them that were computed after the beam search, to certify the list or to
            reach the goal.
    """

    hypotheses: tuple[Hypothesis, ...]
    certified: bool
    best_pruned_score: float
    num_steps: int
    num_nodes: int = 0
    num_exact_nodes: int = 0
