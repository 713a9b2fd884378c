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
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
        """Keep the branches of every depth, so that any of them may get children later.

        Raises:
            ValueError: branches were written before this call.
        """
        if self.depth and not self.keeps_levels:
            raise ValueError(
                f"keep_levels must come before the first step, at depth 0, got it at depth {self.depth}"
            )
        self.keeps_levels = True

    def checked_depth(self, depth: int | None) -> int:
        """Return the depth of a frontier asked for at `depth`; None means one below the deepest.

        Raises:
            ValueError: no branches are kept that could be its parents.
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
        self._tail_depths = self._tail_depths.gather(1, kept.old_slots)
        moved = kept.new_slots.gather(1, paths.flatten(1))
        self._paths[self.depth] = moved.view(paths.shape)
        return kept.old_slots

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


@dataclass(frozen=True, slots=True, eq=False)
class Visibility:
    """The visible part of a stretch of slots."""

    first: int  # No branch attends to a slot before this one
    # True where a branch must not attend, from slot `first` on; None if nothing is hidden. Shape: (Q, B or 1,
    # n - first), bool.
    hidden: Tensor | None


class BranchStep(ABC):
    """The slots that the new tokens of one pass may attend to."""

    def __init__(self, prompts: PromptLayout, positions: Tensor, largest_position: int) -> None:
        self.positions = positions  # Positions of the new tokens. Shape: (Q,), (Q, L) for chains, int64
        self.largest_position = largest_position  # `positions.max()`, known without asking the device
        self._prompts = prompts
        # Layers with the same window share their masks; there are one or two windows per model.
        self._by_window: dict[int | None, tuple[Visibility, Visibility, Visibility]] = {}

    def sights(self, window: int | None) -> tuple[Visibility, Visibility, Visibility]:
        """Return the visibility of the shared prefix (S slots), of the prompts (T) and of the tail (n).

        With a window, a token at position p attends to positions above p - window only.
        """
        if window is not None and self.largest_position < window:
            window = None
        if window not in self._by_window:
            self._by_window[window] = (
                Visibility(0, None) if window is None else self._prefix(window),
                self._prompt(window),
                self._tail(window),
            )
        return self._by_window[window]

    @abstractmethod
    def distances(self) -> tuple[Tensor, Tensor, Tensor]:
        """Distances from the new tokens back to the slots of prefix, prompts and tail, at least 0.

        Returns:
            Shapes: (Q, 1 or L, S), (1 or Q, 1 or L, T) and (Q, 1 or L, n), int64, each in
            [0, `largest_position`].
        """

    @abstractmethod
    def _prefix(self, window: int) -> Visibility: ...

    @abstractmethod
    def _prompt(self, window: int | None) -> Visibility: ...

    @abstractmethod
    def _tail(self, window: int | None) -> Visibility: ...


class TreeStep(BranchStep):
    """The pass of one frontier, whose branches stand at one depth.

    `tail_depths`, (Q, n), is the depth of every tail slot; `invisible`, (Q, B, n), is True for slots that are
    no ancestor.
    """

    def __init__(self, prompts: PromptLayout, depth: int, tail_depths: Tensor, invisible: Tensor) -> None:
        super().__init__(prompts, prompts.lengths_on_device + (depth - 1), prompts.longest + depth - 1)
        self._depth = depth
        self._tail_depths = tail_depths
        self._invisible = invisible

    def distances(self) -> tuple[Tensor, Tensor, Tensor]:
        """See `BranchStep.distances`."""
        device = self.positions.device
        prefix = self.positions[:, None] - torch.arange(self._prompts.prefix_length, device=device)
        width = self._prompts.width
        prompt = torch.arange(width + self._depth - 1, self._depth - 1, -1, device=device)[None]
        tail = (self._depth - self._tail_depths).clamp_(min=0)
        return prefix[:, None], prompt[:, None], tail[:, None]

    def _prefix(self, window: int) -> Visibility:
        prompts = self._prompts
        # Position p attends to p - window + 1 and later; the shortest prompt's branches reach farthest back.
        first = min(max(prompts.shortest + self._depth - window, 0), prompts.prefix_length)
        if first == prompts.prefix_length or prompts.longest + self._depth - window <= first:
            return Visibility(first, None)
        slots = torch.arange(first, prompts.prefix_length, device=self.positions.device)
        return Visibility(first, (self.positions[:, None] - slots >= window)[:, None])

    def _prompt(self, window: int | None) -> Visibility:
        width, padding = self._prompts.width, self._prompts.padding
        first = 0 if window is None else min(max(width + self._depth - window, 0), width)
        return Visibility(first, None if padding is None or first == width else padding[:, None, first:])

    def _tail(self, window: int | None) -> Visibility:
        if window is None or self._depth <= window:
            return Visibility(0, self._invisible)
        too_far = self._depth - self._tail_depths >= window
        return Visibility(0, self._invisible | too_far[:, None])


class ChainStep(BranchStep):
    """The pass that writes consecutive tokens of chains, whose queries stand at different depths.

    Rows without a token attend to the same slots as the last token of their query, and have its depth.
    `depths`, (Q, L), are the tokens written up to and with each new one, at least `least_depth`;
    `slot_depths`, (Q, n), the depth of the token in every slot, this pass's included, 0 for none.
    """

    def __init__(
        self,
        prompts: PromptLayout,
        depths: Tensor,
        slot_depths: Tensor,
        least_depth: int,
        largest_position: int,
    ) -> None:
        super().__init__(prompts, prompts.lengths_on_device[:, None] + depths - 1, largest_position)
        self._depths = depths
        self._slot_depths = slot_depths
        self._least_depth = least_depth

    def distances(self) -> tuple[Tensor, Tensor, Tensor]:
        """See `BranchStep.distances`."""
        prefix = torch.arange(self._prompts.prefix_length, device=self.positions.device)
        own = torch.arange(self._prompts.width, device=self.positions.device)
        return (
            self.positions[..., None] - prefix,
            # The padding of a short prompt lies farther away than any token.
            (self._depths[..., None] + (self._prompts.width - 1) - own).clamp_(max=self.largest_position),
            (self._depths[..., None] - self._slot_depths[:, None]).clamp_(min=0),
        )

    def _prefix(self, window: int) -> Visibility:
        length = self._prompts.prefix_length
        first = min(max(self._prompts.shortest + self._least_depth - window, 0), length)
        if first == length or self.largest_position + 1 - window <= first:
            return Visibility(first, None)
        slots = torch.arange(first, length, device=self.positions.device)
        return Visibility(first, self.positions[..., None] - slots >= window)

    def _prompt(self, window: int | None) -> Visibility:
        width, padding = self._prompts.width, self._prompts.padding
        first = 0 if window is None else min(max(width + self._least_depth - window, 0), width)
        hidden = None if padding is None or first == width else padding[:, None, first:]
        if window is None or first == width:
            return Visibility(first, hidden)
        slots = torch.arange(first, width, device=self.positions.device)
        too_far = self._depths[..., None] + (width - 1) - slots >= window
        return Visibility(first, too_far if hidden is None else hidden | too_far)

    def _tail(self, window: int | None) -> Visibility:
        slots, rows = self._slot_depths[:, None], self._depths[..., None]
        hidden = (slots == 0) | (slots > rows)
        return Visibility(0, hidden if window is None else hidden | (rows - slots >= window))


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


@dataclass(frozen=True, slots=True, eq=False)
class LiveSlots:
    """The slots that a collection keeps, in their old order.

    The result is as wide as the query with most live slots needs. Shorter rows end in fillers: repetitions of
    a slot that no path refers to, so that no branch ever attends to them.
    """

    old_slots: Tensor  # Old slot of every new one. Shape: (Q, width), int64
    # New slot of every old one; meaningless for dead ones, but in range wherever anything is live. Shape: (Q,
    # n), int64.
    new_slots: Tensor


def survivors(paths: Tensor, wanted: Tensor, num_slots: int) -> LiveSlots | None:
    """Find the slots on the paths, (Q, B, depth), of the wanted branches, (Q, B). Waits for the device, once.

    Returns None if nothing can be freed, because some query needs all of its `num_slots` >= 1 slots.
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
    return LiveSlots(old_slots[:, :width], (ranks - 1).clamp_(min=0))
