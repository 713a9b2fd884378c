"""Explains why a query got its answer: the token tree that the model walked, and the draws of `disc`."""

from __future__ import annotations

from dataclasses import dataclass

from genret.decoding.trace import TraceDraw
from genret.retrieval.tables import Shown

MAX_NODES = 4_096
MAX_EXPLAINED_DRAWS = 4_096


@dataclass(frozen=True, slots=True)
class ExplanationNode:
    """A node of the token tree.

    Attributes:
        parent: Position of the parent among the nodes; None at the end of the prompt.
        depth: Tokens written so far; 0 at the end of the prompt.
        token_id: The token that leads here; 0 at the end of the prompt.
        text: Its text; part of a character is shown as U+FFFD, a special token by its name. Empty at the end
            of the prompt.
        logprob: Natural log of the model's probability of the token, among all tokens, behind its parent.
        total_logprob: Natural log of the model's probability of all tokens up to here.
        valid_mass: Valid mass of the next step, in [0, 1]; under a filter that of allowed titles, with
            `top_m` that of tokens among the M likeliest. None where the model was not asked.
        num_valid: Number of tokens that continue a title from here; None where they were not counted.
        state: "expanded": the model went on from here. "finished": a title ends here. "pruned": seen, and
            left for better ones, or for want of room. "closed": seen, and proven to lead to nothing better
            than the list.
        candidate_rank: Position, from 1, of the best candidate that ends here; None where none does.
    """

    parent: int | None
    depth: int
    token_id: int
    text: str
    logprob: float
    total_logprob: float
    valid_mass: float | None = None
    num_valid: int | None = None
    state: str = "expanded"
    candidate_rank: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """The explanation of an answer.

    Attributes:
        nodes: The token tree: the end of the prompt first, parents before children, at most `MAX_NODES`.
        draws: Draws of `disc`, by sample and then by draw, at most `MAX_EXPLAINED_DRAWS`; their nodes are
            positions in `nodes`.
        truncated: Whether nodes or draws were left out. Continuations that ranked far behind the beam are
            never recorded, and do not count.
    """

    nodes: tuple[ExplanationNode, ...] = ()
    draws: tuple[TraceDraw, ...] = ()
    truncated: bool = False

    _told, _rows = ("truncated",), "nodes"
