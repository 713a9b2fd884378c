"""Why a query got its answer: the token tree that the model walked, and the draws of `disc`.

Plain values for people and for the wire. `methods.explainer` makes them from what a decoder recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_NODES = 4_096
MAX_EXPLAINED_DRAWS = 4_096


@dataclass(frozen=True, slots=True)
class ExplanationNode:
    """A place in the token tree.

    Attributes:
        parent: Position of the parent among the nodes; None at the end of the prompt.
        depth: Tokens written so far; 0 at the end of the prompt.
        token_id: The token that leads here; 0 at the end of the prompt.
        text: Its text; part of a character is shown as U+FFFD, a special token by its name. Empty at the end
            of the prompt.
        logprob: Natural log of the model's probability of the token, among all tokens, behind its parent.
        total_logprob: Natural log of the model's probability of all tokens up to here.
        valid_mass: Probability of all tokens that continue a title from here, in [0, 1]; the others are
            invalid and have the rest. Under a filter those that continue a title allowed; with `top_m` those
            among the M likeliest. None where the model was not asked.
        num_valid: Number of tokens that continue a title from here. None where nobody counted.
        state: "expanded": the model went on from here. "finished": a title ends here. "pruned": seen, and
            left for better ones, or for want of room. "closed": seen, and proven to lead to nothing better
            than the list.
        candidate_rank: Position, from 1, of the candidate that ends here; the best of several. None where
            none does.
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


@dataclass(frozen=True, slots=True)
class ExplanationDraw:
    """One draw of `disc`: a title, and whether it was accepted.

    Attributes:
        sample: Which sample it is of, from 0.
        draw: Which draw of the sample, from 0; those of the second phase are numbered behind the first's.
        node: Position in the nodes of the place where its title ends, or where it could not go on.
        valid_mass: Product of the valid masses on its way: the probability that the model writes only valid
            tokens there. 0 where it could not go on.
        acceptance_probability: With which it is accepted; 0 in the second phase, which accepts nothing.
        accepted: Whether it passed.
        chosen: Whether it became the sample: the first one accepted, or taken by weight when none was.
    """

    sample: int
    draw: int
    node: int
    valid_mass: float
    acceptance_probability: float
    accepted: bool
    chosen: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the model was asked and what became of it.

    Attributes:
        nodes: The token tree: the end of the prompt first, parents before children, at most `MAX_NODES`.
        draws: Of `disc`, by sample and then by draw, at most `MAX_EXPLAINED_DRAWS`.
        truncated: Whether nodes or draws were left out. Continuations that ranked far behind the beam are
            never recorded, and do not count.
    """

    nodes: tuple[ExplanationNode, ...] = ()
    draws: tuple[ExplanationDraw, ...] = ()
    truncated: bool = False
