"""Tracks positions and visibility in a batch of token trees; knows no model and no cache.

Every query owns one tree, whose root is the prompt. Each step writes a frontier of B branches, each below a
branch of the depth above (Trie-based beam search with a token tree, Algorithms 2 and 3). All written tokens
lie in one sequence of *slots*; a token attends to its prompt, its ancestors and itself. Every branch keeps
the slots on its path, so no tree is ever walked. Only `collect` waits for the device.

Prompts are padded on the left (`PromptLayout`), so the edge of an attention window lies at the same prompt
slot for every query of a frontier: layers with a window read fewer slots and need no mask for it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from genret.decoding.model.segment_attention import Sights, Visibility


class TokenTree:
    """The trees of Q queries over their prompts.

    A tree holds the paths of its last frontier only; after `keep_levels`, those of every depth.
    """

    def __init__(self, prompts: PromptLayout) -> None:
        self.prompts = prompts  # The prompts
        self.depth = 0  # Tokens on the deepest branches written so far
        self.keeps_levels = False  # Whether any branch may get children, so that nothing is ever dead
        # Slots on the path of every branch, itself last, by depth. The path of a padding branch repeats its
        # own slot. Shape of each: (Q, n, depth), int64.
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
        """Branches per query at the last depth (without levels: of the last frontier); 1 before any step."""
        return self._paths[self.depth].shape[1] if self.depth else 1

    def keep_levels(self) -> None:
        """Keep the branches of every depth; see `DecodeSession.keep_levels`."""
        if self.depth and not self.keeps_levels:
            raise ValueError(
                f"keep_levels must come before the first step, at depth 0, got it at depth {self.depth}"
            )
        self.keeps_levels = True

    def checked_depth(self, depth: int | None) -> int:
        """Return the depth of a frontier, for None the next; ValueError if none is kept above it."""
        following = self.depth + 1
        if depth is None or depth == following:
            return following
        if not self.keeps_levels:
            raise ValueError(f"depth must be {following}, the next, without keep_levels, got {depth}")
        if not 1 <= depth <= following:
            raise ValueError(f"depth must be in [1, {following}], got {depth}")
        return depth

    def grow(self, parents: Tensor, depth: int | None = None) -> BranchStep:
        """Add one frontier of B branches and return what it may attend to.

        `parents`, (Q, B), index the branches written at `depth` - 1, in the order written (without
        `keep_levels` the previous frontier); they are ignored at depth 1. -1 marks a padding branch, which
        attends to its prompt and itself only. A depth of None is one more than the deepest; ValueError as in
        `checked_depth`.
        """
        depth = self.checked_depth(depth)
        queries, branches = parents.shape
        paths = self._paths_below(parents, depth)
        self._tail_depths = torch.cat(
            [self._tail_depths, self._tail_depths.new_full((queries, branches), depth)], dim=1
        )
        unrelated = torch.ones(queries, branches, self.num_slots, dtype=torch.bool, device=parents.device)
        unrelated.scatter_(2, paths, value=False)
        depths = torch.full((1, 1), depth, device=parents.device)
        step = BranchStep(self.prompts, depths, self._tail_depths, unrelated, (depth, depth))
        if not self.keeps_levels:
            self._paths.clear()
        elif depth in self._paths:
            paths = torch.cat([self._paths[depth], paths], dim=1)
        self._paths[depth] = paths
        self.depth = max(self.depth, depth)
        return step

    def _paths_below(self, parents: Tensor, depth: int) -> Tensor:
        """Paths of new branches, which take the next slots. Shape: (Q, B, depth), int64."""
        queries, branches = parents.shape
        first = self.num_slots
        own = torch.arange(first, first + branches, device=parents.device).expand(queries, -1)[..., None]
        if depth == 1:
            return own
        above = self._paths[depth - 1]
        inherited = above.gather(1, parents.clamp(min=0)[..., None].expand(-1, -1, depth - 1))
        return torch.cat([torch.where(parents[..., None] >= 0, inherited, own), own], dim=2)

    def collect(self, parents: Tensor | None) -> Tensor | None:
        """Free the slots that no branch descends from; with levels none is dead. Waits for the device.

        Branches keep their numbers; those outside `parents`, (Q, B), int64, as `grow` will get them (None:
        all), lose their paths. Returns the old slot of every slot that is left, (Q, m), int64; None if all
        are.
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
        old_slots, new_slots = kept
        self._tail_depths = self._tail_depths.gather(1, old_slots)
        self._paths[self.depth] = new_slots.gather(1, paths.flatten(1)).view(paths.shape)
        return old_slots

    def select(self, queries: Sequence[int], chosen: Tensor, branches: bool) -> TokenTree:
        """Return the trees of some queries (`chosen` on the device), with or without the written branches."""
        prompts = self.prompts.select(queries)
        if not branches:
            return TokenTree(prompts)
        other = copy.copy(self)
        other.prompts = prompts
        other._paths = {depth: paths[chosen] for depth, paths in self._paths.items()}
        other._tail_depths = self._tail_depths[chosen]
        return other


class BranchStep(Sights):
    """The pass that writes one frontier of branches, or the next tokens of chains: prefix, prompts and tail.

    Rows without a token, in chains, attend to the same slots as the last token of their query.

    Args:
        prompts: The prompts.
        depths: Tokens written up to and with each new one. Shape: (Q, L), (1, 1) for a frontier, int64.
        slot_depths: Depth of the token in every tail slot, this pass's included. Shape: (Q, n), int64.
        unrelated: True for tail slots that hold no ancestor of a new token. Shape: (Q, L, n), bool.
        depth_bounds: The smallest and the largest of `depths`, known without asking the device.
        largest_position: The largest position of a new token; None: that of the longest prompt.
    """

    def __init__(
        self,
        prompts: PromptLayout,
        depths: Tensor,
        slot_depths: Tensor,
        unrelated: Tensor,
        depth_bounds: tuple[int, int],
        largest_position: int | None = None,
    ) -> None:
        self._prompts, self._depths, self._slot_depths = prompts, depths, slot_depths
        self._unrelated = unrelated
        self._least_depth, self._most_depth = depth_bounds
        if largest_position is None:
            largest_position = prompts.longest + self._most_depth - 1
        positions = prompts.lengths_on_device[:, None] + (depths - 1)
        super().__init__(positions, prompts.shortest + self._least_depth - 1, largest_position)

    def columns(self, first: int, end: int) -> BranchStep:
        """Return the step of some columns of new tokens, once those before are written."""
        slots = self._slot_depths.shape[1] - (self._unrelated.shape[1] - end)
        depths = self._depths[:, first:end] if self._depths.shape[1] > 1 else self._depths
        return BranchStep(
            self._prompts,
            depths,
            self._slot_depths[:, :slots],
            self._unrelated[:, first:end, :slots],
            (self._least_depth, self._most_depth),
            self.largest_position,
        )

    def distances(self) -> tuple[Tensor, Tensor, Tensor]:
        """See `Sights.distances`."""
        prefix = torch.arange(self._prompts.prefix_length, device=self.positions.device)
        return (
            self.positions[..., None] - prefix,
            # The padding of a short prompt lies farther away than any token.
            self._behind_prompt(0).clamp_(max=self.largest_position),
            (self._depths[..., None] - self._slot_depths[:, None]).clamp_(min=0),
        )

    def _look(self, window: int | None) -> tuple[Visibility, Visibility, Visibility]:
        tail = self._unrelated
        if window is not None and self._most_depth > window:
            tail = tail | (self._depths[..., None] - self._slot_depths[:, None] >= window)
        prefix = self._at_positions(0, self._prompts.prefix_length, window)
        return prefix, self._prompt(window), Visibility(0, tail)

    def _prompt(self, window: int | None) -> Visibility:
        width, padding = self._prompts.width, self._prompts.padding
        first = 0 if window is None else min(max(width + self._least_depth - window, 0), width)
        hidden = None if padding is None or first == width else padding[:, None, first:]
        # At one depth, as in a frontier, the window ends at `first` for every token.
        if window is None or first == width or self._least_depth == self._most_depth:
            return Visibility(first, hidden)
        too_far = self._behind_prompt(first) >= window
        return Visibility(first, too_far if hidden is None else hidden | too_far)

    def _behind_prompt(self, first: int) -> Tensor:
        """Distances back to the prompts' slots from `first` on. Shape: (Q or 1, L or 1, T - first)."""
        slots = torch.arange(first, self._prompts.width, device=self.positions.device)
        return self._depths[..., None] + (self._prompts.width - 1) - slots


class PromptLayout:
    """Prompts of Q queries in T slots, the shared prefix left out.

    Args:
        lengths: Length in tokens of every whole prompt. Length Q.
        device: Device of the tensors.
        prefix_length: Tokens of the shared prefix, S, which have no slots; every prompt is longer.

    Attributes:
        width: Slots per query, T: tokens of the longest prompt behind the prefix.
        lengths_on_device: Shape: (Q,), int64.
        padding: True where a slot is padding; None if there is none. Shape: (Q, T), bool.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, prefix_length: int = 0) -> None:
        if not lengths or min(lengths) <= prefix_length:
            raise ValueError(
                f"prompt lengths must hold at least one length, each >= {prefix_length + 1}, "
                f"got {list(lengths)}"
            )
        self.lengths = tuple(lengths)
        self.prefix_length = prefix_length
        self.longest = max(lengths)  # Length of the longest prompt
        self.shortest = min(lengths)  # Length of the shortest prompt
        self.width = self.longest - prefix_length
        self.lengths_on_device = torch.tensor(self.lengths, dtype=torch.int64, device=device)
        self.padding = (self.positions() < prefix_length) if self.shortest < self.longest else None

    @property
    def own_lengths(self) -> tuple[int, ...]:
        """Tokens of every prompt behind the prefix."""
        return tuple(length - self.prefix_length for length in self.lengths)

    def positions(self) -> Tensor:
        """Position of the token in every slot, below S on padding. Shape: (Q, T), int64."""
        slots = torch.arange(self.width, device=self.lengths_on_device.device)
        return slots[None, :] + (self.lengths_on_device - self.width)[:, None]

    def select(self, queries: Sequence[int]) -> PromptLayout:
        """Return the layout of some of the prompts, in that order."""
        lengths = [self.lengths[query] for query in queries]
        return PromptLayout(lengths, self.lengths_on_device.device, self.prefix_length)


@dataclass(frozen=True, slots=True)
class CollectionPolicy:
    """When a session collects dead branches. Finding the live ones waits for the device."""

    # Steps from one collection to the next, at least 1; None collects on no schedule.
    interval: int | None = 16
    under_pressure: bool = True  # Whether to collect before the reserved room would have to grow

    def __post_init__(self) -> None:
        if self.interval is not None and (isinstance(self.interval, bool) or self.interval < 1):
            raise ValueError(f"interval must be at least 1, or None for no schedule, got {self.interval}")

    @classmethod
    def never(cls) -> CollectionPolicy:
        """Keep every branch that was ever written."""
        return cls(interval=None, under_pressure=False)

    def is_due(self, steps: int, full: bool) -> bool:
        """Whether to collect before the next frontier is written.

        Args:
            steps: Frontiers written since the last collection.
            full: Whether there is no room left for the next one.
        """
        return (self.interval is not None and steps >= self.interval) or (self.under_pressure and full)


DEFAULT_COLLECTION = CollectionPolicy()


def survivors(paths: Tensor, wanted: Tensor, num_slots: int) -> tuple[Tensor, Tensor] | None:
    """Find the slots on the paths, (Q, B, depth), of the wanted branches, (Q, B). Waits for the device, once.

    Returns the old slot of every slot that is kept, in the old order, and the new slot of every old one;
    shapes (Q, width) and (Q, n), int64. The width is what the query with most live slots needs: shorter rows
    end in repetitions of a slot that no path refers to, so that no branch ever attends to them. New slots of
    dead ones are meaningless, but in range wherever anything is live. None if nothing can be freed, because
    some query needs all of its `num_slots` >= 1 slots.
    """
    queries = paths.shape[0]
    # One more column takes the paths of unwanted branches.
    marked = torch.where(wanted[..., None], paths, num_slots).reshape(queries, -1)
    live = torch.zeros(queries, num_slots + 1, dtype=torch.bool, device=paths.device)
    live = live.scatter_(1, marked, value=True)[:, :num_slots]
    ranks = live.cumsum(1)
    width = int(ranks[:, -1].max())
    if width == num_slots:
        return None
    slots = torch.arange(num_slots, device=paths.device).expand(queries, -1)
    # One more column takes the dead. Cells that are not written stay slot 0, the filler.
    old_slots = torch.zeros(queries, width + 1, dtype=torch.int64, device=paths.device)
    old_slots.scatter_(1, torch.where(live, ranks - 1, width), slots)
    return old_slots[:, :width], (ranks - 1).clamp_(min=0)
