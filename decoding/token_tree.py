"""Who sees whom in a batch of token trees: positions and visibility, no model and no cache.

Every query owns one tree. Its root is the prompt; a frontier of B branches is written per step, each below
a branch one level up (Trie-based beam search with a token tree, Algorithms 2 and 3). All written tokens lie
in one sequence of *slots*; a token may look at its prompt, its ancestors and itself. Every branch keeps the
slots on its path, so a new frontier needs one gather and one scatter, at whatever level it is written. No
tree is ever walked, and nothing here waits for the device.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor


class TokenTree:
    """The trees of Q queries over left-padded prompts of width T.

    A tree holds the paths of its last frontier only, and those of all levels after `keep_levels`.

    Args:
        prompt_lengths: True length in tokens of every prompt, each at least 1. Length Q.
        device: Where positions and masks live.

    Attributes:
        prompt_positions: Position of every prompt slot, negative on padding. Shape: (Q, T), int64.
        depth: Tokens on the deepest branches written so far.
    """

    def __init__(self, prompt_lengths: Sequence[int], device: torch.device) -> None:
        self._set_prompts(prompt_lengths, device)
        self.depth = 0
        self._keeps_levels = False
        # Slots on the path of every branch, itself last; the path of a padding branch is itself over and
        # over. By depth; only the last depth's without levels. Shape of each: (Q, n, depth), int64.
        self._paths: dict[int, Tensor] = {}
        self._tail_positions = torch.zeros(self.num_queries, 0, dtype=torch.int64, device=device)

    def _set_prompts(self, prompt_lengths: Sequence[int], device: torch.device) -> None:
        if not prompt_lengths or min(prompt_lengths) < 1:
            raise ValueError(
                f"prompt_lengths must hold at least one length, each >= 1, got {list(prompt_lengths)}"
            )
        self.prompt_lengths = tuple(prompt_lengths)
        self.longest_prompt = max(prompt_lengths)
        self._lengths = torch.tensor(prompt_lengths, dtype=torch.int64, device=device)
        slots = torch.arange(self.longest_prompt, device=device)
        self.prompt_positions = slots[None, :] - (self.longest_prompt - self._lengths)[:, None]
        self._prompt_padding = (
            self.prompt_positions < 0 if min(prompt_lengths) != self.longest_prompt else None
        )

    @property
    def num_queries(self) -> int:
        """Q."""
        return self._lengths.shape[0]

    def keep_levels(self) -> None:
        """Keep the branches of every depth, so that any of them may get children later.

        Raises:
            ValueError: branches have been written without.
        """
        if self.depth and not self._keeps_levels:
            raise ValueError(
                f"keep_levels must come before the first step, at depth 0, got it at depth {self.depth}"
            )
        self._keeps_levels = True

    def checked_depth(self, depth: int | None) -> int:
        """The depth that a frontier asked for at `depth` has; None is one below the deepest.

        Raises:
            ValueError: there is no level to write it under.
        """
        following = self.depth + 1
        if depth is None or depth == following:
            return following
        if not self._keeps_levels:
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
        positions = self._lengths + (depth - 1)
        self._tail_positions = torch.cat(
            [self._tail_positions, positions[:, None].expand(queries, branches)], dim=1
        )
        hidden = torch.ones(
            queries, branches, self._tail_positions.shape[1], dtype=torch.bool, device=parents.device
        )
        step = TreeStep(
            positions=positions,
            largest_position=self.longest_prompt + depth - 1,
            key_positions=torch.cat([self.prompt_positions, self._tail_positions], dim=1),
            prompt_padding=self._prompt_padding,
            invisible=hidden.scatter_(2, paths, value=False),
        )
        if not self._keeps_levels:
            self._paths.clear()
        elif depth in self._paths:
            paths = torch.cat([self._paths[depth], paths], dim=1)
        self._paths[depth] = paths
        self.depth = max(self.depth, depth)
        return step

    def _paths_below(self, parents: Tensor, depth: int) -> Tensor:
        """Slots on the paths of new branches that take the next slots. Shape: (Q, B, depth), int64."""
        queries, branches = parents.shape
        first = self._tail_positions.shape[1]
        own = torch.arange(first, first + branches, device=parents.device).expand(queries, branches)[
            ..., None
        ]
        if depth == 1:
            return own
        above = self._paths[depth - 1]
        inherited = above.gather(1, parents.clamp(min=0)[..., None].expand(-1, -1, depth - 1))
        return torch.cat([torch.where(parents[..., None] >= 0, inherited, own), own], dim=2)

    def select(self, queries: Sequence[int], chosen: Tensor, branches: bool) -> TokenTree:
        """Return the trees of some queries, in that order.

        Args:
            queries: Numbers of the queries. Length n >= 1.
            chosen: The same on the device. Shape: (n,), int64.
            branches: Whether to take over what was written; otherwise the trees are their prompts alone.
        """
        lengths = [self.prompt_lengths[query] for query in queries]
        if not branches:
            return TokenTree(lengths, chosen.device)
        other = copy.copy(self)
        other._set_prompts(lengths, chosen.device)
        other._paths = {depth: paths[chosen] for depth, paths in self._paths.items()}
        other._tail_positions = self._tail_positions[chosen]
        return other


class TreeStep:
    """What one frontier may look at. All its branches stand at the same depth, hence at one position.

    Args:
        positions: Position of the new tokens. Shape: (Q,), int64.
        largest_position: `positions.max()`, known without asking the device.
        key_positions: Positions of prompt and tail slots, negative on padding. Shape: (Q, T + n), int64.
        prompt_padding: True where a prompt slot is padding, None without padding. Shape: (Q, T), bool.
        invisible: True where a tail slot is no ancestor. Shape: (Q, B, n), bool.
    """

    __slots__ = (
        "_by_window",
        "_invisible",
        "_key_positions",
        "_prompt_padding",
        "largest_position",
        "positions",
    )

    def __init__(
        self,
        positions: Tensor,
        largest_position: int,
        key_positions: Tensor,
        prompt_padding: Tensor | None,
        invisible: Tensor,
    ) -> None:
        self.positions = positions
        self.largest_position = largest_position
        self._key_positions = key_positions
        self._prompt_padding = prompt_padding
        self._invisible = invisible
        # Layers with the same window share their masks; there are one or two windows per model.
        self._by_window: dict[int | None, tuple[Tensor | None, Tensor]] = {}

    def hidden(self, window: int | None) -> tuple[Tensor | None, Tensor]:
        """Masks of prompt and tail, True where a branch may not look.

        Args:
            window: A token at position p sees positions above p - window; None is unbounded.

        Returns:
            Mask of the prompt slots, None where all are visible, shape (Q, 1, T), bool; and of the tail
            slots, shape (Q, B, n), bool.
        """
        if window is not None and self.largest_position < window:
            window = None
        if window not in self._by_window:
            self._by_window[window] = self._masks(window)
        return self._by_window[window]

    def distances(self) -> Tensor:
        """How far every slot lies behind the new tokens, 0 where it does not. Shape: (Q, T + n), int64."""
        return (self.positions[:, None] - self._key_positions).clamp(0, self.largest_position)

    def _masks(self, window: int | None) -> tuple[Tensor | None, Tensor]:
        prompt = None if self._prompt_padding is None else self._prompt_padding[:, None, :]
        if window is None:
            return prompt, self._invisible
        prompt_width = self._key_positions.shape[1] - self._invisible.shape[2]
        outside = (self.positions[:, None] - self._key_positions >= window)[:, None, :]
        too_old = outside[:, :, :prompt_width]
        return (
            too_old if prompt is None else prompt | too_old,
            self._invisible | outside[:, :, prompt_width:],
        )
