"""Records the token tree that a decoder walked for one query, for explanations.

A decoder writes into the trace it is given, and does no extra work without one. Holds token ids only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

NodeState = Literal["expanded", "pruned", "finished", "closed"]

ROOT = 0
# Most recorded nodes: of dropped ones, and of all. They bound the memory of wide searches.
MAX_LEFT = 4_096
MAX_NODES = 65_536


@dataclass(slots=True)
class TraceNode:
    """A prefix that the decoder considered."""

    parent: int  # Position of its parent in the trace, -1 for the root
    depth: int  # Its tokens
    token: int  # The last of them, 0 for the root
    total_logprob: float  # log P_L of the prefix
    # "expanded": the model was run on it. "finished": a whole row. "pruned": dropped for better ones, or for
    # lack of room. "closed": dropped, and proven to lead to nothing better than what was found.
    state: NodeState
    # Probability of all tokens that may follow it; with `top_m`, of the verified ones. None if the model was
    # not run, or not all of them were listed.
    valid_mass: float | None = None
    num_valid: int | None = None  # Number of tokens that may follow. None if not counted
    row: int = -1  # Rank of a finished row in the constraint, else -1


@dataclass(frozen=True, slots=True)
class TraceDraw:
    """One draw of DISC: a row, and whether it was accepted."""

    sample: int  # Number of the sample it is for, from 0
    draw: int  # Number within the sample, from 0; draws of the second phase follow those of the first
    node: int  # Position of the place where its row ends, or where it could not go on
    # Product of the valid masses on its way: the probability that the model writes only valid tokens there. 0
    # where it could not go on.
    valid_mass: float
    acceptance_probability: float  # Of being accepted; 0 in the second phase, which accepts nothing
    accepted: bool  # Whether it was
    chosen: bool  # Whether it became the sample: the first accepted, or taken by weight when none was


@dataclass(slots=True)
class Trace:
    """The token tree of one query. Several searches of the query may write into it, one after the other."""

    # The root first, parents before children.
    nodes: list[TraceNode] = field(default_factory=lambda: [TraceNode(-1, 0, 0, 0.0, "pruned")])
    draws: list[TraceDraw] = field(default_factory=list)  # Draws of DISC, by sample and draw
    is_full: bool = False  # Whether something was left out for lack of space
    _places: dict[tuple[int, int], int] = field(default_factory=dict)

    def enter(self, parent: int, token: int, total_logprob: float, state: NodeState, row: int = -1) -> int:
        """Record a prefix and return its position; -1 if it is left out.

        A known prefix keeps its position: "expanded" and "finished" stay, other states are replaced. `parent`
        is -1 if that was left out; `row` is the rank of a finished row.
        """
        known = self._places.get((parent, token))
        if known is not None:
            node = self.nodes[known]
            if node.state in ("pruned", "closed"):
                node.state = state
            return known
        most = MAX_LEFT if state in ("pruned", "closed") else MAX_NODES
        if parent < 0 or len(self.nodes) >= most:
            self.is_full = True
            return -1
        self.nodes.append(
            TraceNode(parent, self.nodes[parent].depth + 1, token, total_logprob, state, row=row)
        )
        self._places[parent, token] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def expand(self, node: int, valid_mass: float | None, num_valid: int | None) -> None:
        """Record that the model was run on a prefix, and the mass and number of its allowed tokens."""
        if node >= 0:
            here = self.nodes[node]
            here.state, here.num_valid = "expanded", num_valid
            here.valid_mass = None if valid_mass is None else min(1.0, valid_mass)

    def leave(self, node: int, state: NodeState) -> None:
        """Set the state of a prefix that the model was not run on."""
        if node >= 0 and self.nodes[node].state in ("pruned", "closed"):
            self.nodes[node].state = state
