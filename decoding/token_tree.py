"""Who sees whom in a batch of token trees: positions and visibility, no model and no cache.

Every query owns one tree. Its root is the prompt; a frontier of B branches is written per step, each below
a branch one level up (Trie-based beam search with a token tree, Algorithms 2 and 3). All written tokens lie
in one sequence of *slots*; a token may look at its prompt, its ancestors and itself. Every branch keeps the
slots on its path, so a new frontier needs one gather and one scatter, at whatever level it is written, and
so does finding out what is dead. No tree is ever walked. Only `collect` waits for the device.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.collection import survivors
from decoding.prompt_layout import PromptLayout
from decoding.tree_step import TreeStep


class TokenTree:
    """The trees of Q queries over their prompts.

    A tree holds the paths of its last frontier only, and those of all levels after `keep_levels`.

    Args:
        prompts: The prompts.

    Attributes:
        prompts: As given.
        depth: Tokens on the deepest branches written so far.
        keeps_levels: Whether any branch may get children, so that nothing is ever dead.
    """

    def __init__(self, prompts: PromptLayout) -> None:
        self.prompts = prompts
        self.depth = 0
        self.keeps_levels = False
        # Slots on the path of every branch, itself last; the path of a padding branch is itself over and
        # over. By depth; only the last depth's without levels. Shape of each: (Q, n, depth), int64.
        self._paths: dict[int, Tensor] = {}
        device = prompts.lengths_on_device.device
        self._tail_depths = torch.zeros(self.num_queries, 0, dtype=torch.int64, device=device)

    @property
    def num_queries(self) -> int:
        """Q."""
        return len(self.prompts.lengths)

    @property
    def num_slots(self) -> int:
        """Tail slots per query, n: tokens written and not collected, fillers included."""
        return self._tail_depths.shape[1]

    @property
    def width(self) -> int:
        """Branches per query at the last depth, without levels those of the last frontier; 1 of prompts."""
        return self._paths[self.depth].shape[1] if self.depth else 1

    def keep_levels(self) -> None:
        """Keep the branches of every depth, so that any of them may get children later.

        Raises:
            ValueError: branches have been written without.
        """
        if self.depth and not self.keeps_levels:
            raise ValueError(
                f"keep_levels must come before the first step, at depth 0, got it at depth {self.depth}"
            )
        self.keeps_levels = True

    def checked_depth(self, depth: int | None) -> int:
        """The depth that a frontier asked for at `depth` has; None is one below the deepest.

        Raises:
            ValueError: there is no level to write it under.
        """
        following = self.depth + 1
        if depth is None or depth == following:
            return following
        if not self.keeps_levels:
            raise ValueError(f"depth must be {following}, the next, without keep_levels, got {depth}")
        if not 1 <= depth <= following:
            raise ValueError(f"depth must be in [1, {following}], got {depth}")
        return depth

    def grow(self, parents: Tensor, depth: int | None = None) -> TreeStep:
        """Add one frontier of B branches.

        Args:
            parents: Index into the branches written at `depth` - 1, in the order written, -1 for padding
                branches; ignored at depth 1. Without `keep_levels` those branches are the previous
                frontier. A padding branch sees its prompt and itself only. Shape: (Q, B), int64.
            depth: Tokens on the new branches; None is one more than the deepest have.

        Returns:
            What the attention of the new frontier may look at.

        Raises:
            ValueError: there is no level to write the frontier under.
        """
        depth = self.checked_depth(depth)
        queries, branches = parents.shape
        paths = self._paths_below(parents, depth)
        self._tail_depths = torch.cat(
            [self._tail_depths, self._tail_depths.new_full((queries, branches), depth)], dim=1
        )
        hidden = torch.ones(queries, branches, self.num_slots, dtype=torch.bool, device=parents.device)
        step = TreeStep(self.prompts, depth, self._tail_depths, hidden.scatter_(2, paths, value=False))
        if not self.keeps_levels:
            self._paths.clear()
        elif depth in self._paths:
            paths = torch.cat([self._paths[depth], paths], dim=1)
        self._paths[depth] = paths
        self.depth = max(self.depth, depth)
        return step

    def _paths_below(self, parents: Tensor, depth: int) -> Tensor:
        """Slots on the paths of new branches that take the next slots. Shape: (Q, B, depth), int64."""
        queries, branches = parents.shape
        first = self.num_slots
        own = torch.arange(first, first + branches, device=parents.device).expand(queries, -1)[..., None]
        if depth == 1:
            return own
        above = self._paths[depth - 1]
        inherited = above.gather(1, parents.clamp(min=0)[..., None].expand(-1, -1, depth - 1))
        return torch.cat([torch.where(parents[..., None] >= 0, inherited, own), own], dim=2)

    def collect(self, parents: Tensor | None) -> Tensor | None:
        """Forget the slots that no branch descends from. Waits for the device.

        Branches keep their numbers; those that are no parent lose their paths. With levels every branch may
        get children, and nothing is dead.

        Args:
            parents: Which branches of the last frontier matter, as `grow` will be given them; None is all.
                Shape: (Q, B), int64.

        Returns:
            For every slot that is left, which it was before; None where all are. Shape: (Q, m), int64.
        """
        if self.keeps_levels or self.depth == 0 or self.num_slots == 0:
            return None
        paths = self._paths[self.depth]
        queries, branches, _ = paths.shape
        # One more column takes the parents of padding branches.
        wanted = torch.zeros(queries, branches + 1, dtype=torch.bool, device=paths.device)
        if parents is None:
            wanted.fill_(True)
        else:
            wanted.scatter_(1, torch.where(parents >= 0, parents, branches), value=True)
        kept = survivors(paths, wanted[:, :-1], self.num_slots)
        if kept is None:
            return None
        self._tail_depths = self._tail_depths.gather(1, kept.old_slots)
        moved = kept.new_slots.gather(1, paths.flatten(1))
        self._paths[self.depth] = moved.view(paths.shape)
        return kept.old_slots

    def select(self, queries: Sequence[int], chosen: Tensor, branches: bool) -> TokenTree:
        """Return the trees of some queries, in that order.

        Args:
            queries: Numbers of the queries. Length n >= 1.
            chosen: The same on the device. Shape: (n,), int64.
            branches: Whether to take over what was written; otherwise the trees are their prompts alone.
        """
        prompts = self.prompts.select(queries)
        if not branches:
            return TokenTree(prompts)
        other = copy.copy(self)
        other.prompts = prompts
        other._paths = {depth: paths[chosen] for depth, paths in self._paths.items()}
        other._tail_depths = self._tail_depths[chosen]
        return other
