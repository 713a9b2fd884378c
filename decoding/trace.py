"""What a decoder did for one query, for people: the token tree that it walked.

A decoder that is given a trace writes into it; without one it does nothing for it. Token ids only: who knows
the tokenizer makes texts of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

NodeState = Literal["expanded", "pruned", "finished", "closed"]

ROOT = 0
# Nodes beyond these are not recorded: of those that were seen and left, and of all. Wide searches for many
# titles would otherwise fill the memory with what nobody reads.
MAX_LEFT = 4_096
MAX_NODES = 65_536


@dataclass(slots=True)
class TraceNode:
    """A prefix that was looked at.

    Attributes:
        parent: Position of its parent in the trace, -1 for the root.
        depth: Its tokens.
        token: The last of them, 0 for the root.
        total_logprob: log P_L of the prefix.
        state: "expanded": the model was run on it. "finished": a whole row. "pruned": left for better ones,
            or for want of room. "closed": left, and proven to lead to nothing better than what was found.
        valid_mass: Probability of all tokens that may follow it together; of those that were verified, where
            only the M likeliest are. None where the model was not run, or not all of them were looked at.
        num_valid: How many may follow. None where nobody counted.
        row: Rank of a finished row in the constraint, -1 without.
    """

    parent: int
    depth: int
    token: int
    total_logprob: float
    state: NodeState
    valid_mass: float | None = None
    num_valid: int | None = None
    row: int = -1


@dataclass(frozen=True, slots=True)
class TraceDraw:
    """A draw of DISC.

    Attributes:
        sample: Which result it is for.
        number: Its number among the draws for that result, those of the second phase behind the first's.
        node: Where it ended, in the trace.
        valid_mass: Product of the valid masses met: its weight. 0 where it could not go on.
        acceptance: Probability with which it is accepted; 0 in the second phase, where no draw is.
        accepted: Whether it was.
        chosen: Whether it became the result.
    """

    sample: int
    number: int
    node: int
    valid_mass: float
    acceptance: float
    accepted: bool
    chosen: bool


@dataclass(slots=True)
class Trace:
    """The token tree of one query. Several searches of the query may write into it, one after the other.

    Attributes:
        nodes: The root first, parents before children.
        draws: Of DISC, by result and number.
        is_full: Whether something was left out for want of space.
    """

    nodes: list[TraceNode] = field(default_factory=lambda: [TraceNode(-1, 0, 0, 0.0, "pruned")])
    draws: list[TraceDraw] = field(default_factory=list)
    is_full: bool = False
    _places: dict[tuple[int, int], int] = field(default_factory=dict)

    def enter(self, parent: int, token: int, total_logprob: float, state: NodeState, row: int = -1) -> int:
        """Note a prefix.

        One that is known keeps its place: what was expanded or finished stays so, and what was left before
        has the new state.

        Args:
            parent: Position of its parent, -1 where that was left out.
            token: Its last token.
            total_logprob: log P_L of the prefix.
            state: What has become of it.
            row: Rank of a finished row.

        Returns:
            Its position; -1 where it is left out.
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
        """Note that the model was run on a prefix, and what it said of the tokens that may follow."""
        if node >= 0:
            here = self.nodes[node]
            here.state, here.num_valid = "expanded", num_valid
            here.valid_mass = None if valid_mass is None else min(1.0, valid_mass)

    def leave(self, node: int, state: NodeState) -> None:
        """Note what became of a prefix that the model was not run on."""
        if node >= 0 and self.nodes[node].state in ("pruned", "closed"):
            self.nodes[node].state = state
