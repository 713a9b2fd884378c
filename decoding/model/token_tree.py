"""Tracks who sees whom in a batch of token trees: positions and visibility, no model and no cache.

Every query owns one tree. Its root is the prompt; a frontier of B branches is written per step, each below a
branch one level up (Trie-based beam search with a token tree, Algorithms 2 and 3). All written tokens lie in
one sequence of *slots*; a token may look at its prompt, its ancestors and itself. Every branch keeps the
slots on its path, so a new frontier needs one gather and one scatter, at whatever level it is written, and
so does finding out what is dead. No tree is ever walked. Only `collect` waits for the device.

A `TreeStep` says what one frontier may look at. Its branches all stand at the same depth, so a window's edge
in the prompts is at the same slot for every query, padded on the left as they are (`PromptLayout`), and
known to the host: layers with a window read less, and no mask is needed for it. A `ChainStep` is its
counterpart where the tokens of one pass follow each other and queries have written different numbers of
them.

Collection frees dead branches. A slot is *live* while it lies on the path of a branch that may still get
children; marking is one scatter, and what survives keeps its order.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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


@dataclass(frozen=True, slots=True, eq=False)
class Visibility:
    """What may be seen of a stretch of slots.

    Attributes:
        first: No branch sees a slot before this one.
        hidden: True where a branch may not look, from slot `first` on; None where it sees all of them.
            Shape: (Q, B or 1, n - first), bool.
    """

    first: int
    hidden: Tensor | None


class TreeStep:
    """What one frontier may look at.

    Args:
        prompts: The prompts.
        depth: Tokens on the new branches, themselves included.
        tail_depths: Depth of every tail slot. Shape: (Q, n), int64.
        invisible: True where a tail slot is no ancestor. Shape: (Q, B, n), bool.

    Attributes:
        positions: Position of the new tokens. Shape: (Q,), int64.
        largest_position: `positions.max()`, known without asking the device.
    """

    __slots__ = (
        "_by_window",
        "_depth",
        "_invisible",
        "_prompts",
        "_tail_depths",
        "largest_position",
        "positions",
    )

    def __init__(self, prompts: PromptLayout, depth: int, tail_depths: Tensor, invisible: Tensor) -> None:
        self._prompts = prompts
        self._depth = depth
        self._tail_depths = tail_depths
        self._invisible = invisible
        self.positions = prompts.lengths_on_device + (depth - 1)
        self.largest_position = prompts.longest + depth - 1
        # Layers with the same window share their masks; there are one or two windows per model.
        self._by_window: dict[int | None, tuple[Visibility, Visibility, Visibility]] = {}

    def sights(self, window: int | None) -> tuple[Visibility, Visibility, Visibility]:
        """What may be seen of the shared prefix (S slots), of the prompts (T) and of the tail (n).

        Args:
            window: A token at position p sees positions above p - window; None is unbounded.
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

    def distances(self) -> tuple[Tensor, Tensor, Tensor]:
        """How far the slots of prefix, prompts and tail lie behind the new tokens, 0 where they do not.

        Returns:
            Shapes: (Q, 1, S), (1, 1, T) and (Q, 1, n), int64, each in [0, `largest_position`].
        """
        device = self.positions.device
        prefix = self.positions[:, None] - torch.arange(self._prompts.prefix_length, device=device)
        width = self._prompts.width
        prompt = torch.arange(width + self._depth - 1, self._depth - 1, -1, device=device)[None]
        tail = (self._depth - self._tail_depths).clamp_(min=0)
        return prefix[:, None], prompt[:, None], tail[:, None]

    def _prefix(self, window: int) -> Visibility:
        prompts = self._prompts
        # Position p sees p - window + 1 and what follows; the shortest prompt's branches see farthest back.
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


class ChainStep:
    """What one pass may look at. Rows without a token look at what the last token of their query sees.

    Args:
        prompts: The prompts.
        depths: Tokens written up to and with each new one; the query's last on rows without one.
            Shape: (Q, L), int64.
        slot_depths: Depth of the token in every slot, this pass's included, 0 where there is none.
            Shape: (Q, n), int64.
        least_depth: At most the smallest of `depths`.
        largest_position: The largest position of a new token.

    Attributes:
        positions: Shape: (Q, L), int64.
        largest_position: As given.
    """

    __slots__ = (
        "_by_window",
        "_depths",
        "_least_depth",
        "_prompts",
        "_slot_depths",
        "largest_position",
        "positions",
    )

    def __init__(
        self,
        prompts: PromptLayout,
        depths: Tensor,
        slot_depths: Tensor,
        least_depth: int,
        largest_position: int,
    ) -> None:
        self._prompts = prompts
        self._depths = depths
        self._slot_depths = slot_depths
        self._least_depth = least_depth
        self.positions = prompts.lengths_on_device[:, None] + depths - 1
        self.largest_position = largest_position
        self._by_window: dict[int | None, tuple[Visibility, Visibility, Visibility]] = {}

    def sights(self, window: int | None) -> tuple[Visibility, Visibility, Visibility]:
        """What may be seen of the shared prefix (S slots), of the prompts (T) and of the tail (n).

        Args:
            window: A token at position p sees positions above p - window; None is unbounded.
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

    def distances(self) -> tuple[Tensor, Tensor, Tensor]:
        """How far the slots of prefix, prompts and tail lie behind the new tokens, 0 where they do not.

        Returns:
            Shapes: (Q, L, S), (Q, L, T) and (Q, L, n), int64, each in [0, `largest_position`].
        """
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
        device: Where the layout is needed.
        prefix_length: Tokens that all prompts begin with and that have no slots of their own; every prompt
            is longer.

    Attributes:
        lengths: As given.
        prefix_length: As given, S.
        longest: The longest prompt.
        shortest: The shortest prompt.
        width: Slots per query, T: what the longest prompt has behind the prefix.
        lengths_on_device: Shape: (Q,), int64.
        padding: True where a slot is padding; None where there is none. Shape: (Q, T), bool.
    """

    __slots__ = (
        "lengths",
        "lengths_on_device",
        "longest",
        "padding",
        "prefix_length",
        "shortest",
        "width",
    )

    def __init__(self, lengths: Sequence[int], device: torch.device, prefix_length: int = 0) -> None:
        if not lengths or min(lengths) <= prefix_length:
            raise ValueError(
                f"prompt lengths must hold at least one length, each >= {prefix_length + 1}, "
                f"got {list(lengths)}"
            )
        self.lengths = tuple(lengths)
        self.prefix_length = prefix_length
        self.longest = max(lengths)
        self.shortest = min(lengths)
        self.width = self.longest - prefix_length
        self.lengths_on_device = torch.tensor(self.lengths, dtype=torch.int64, device=device)
        self.padding = (self.positions() < prefix_length) if self.shortest < self.longest else None

    @property
    def own_lengths(self) -> tuple[int, ...]:
        """What every prompt has behind the prefix."""
        return tuple(length - self.prefix_length for length in self.lengths)

    def positions(self) -> Tensor:
        """Position of the token in every slot, below S on padding. Shape: (Q, T), int64."""
        slots = torch.arange(self.width, device=self.lengths_on_device.device)
        return slots[None, :] + (self.lengths_on_device - self.width)[:, None]

    def select(self, queries: Sequence[int]) -> PromptLayout:
        """The layout of some of the prompts, in that order."""
        lengths = [self.lengths[query] for query in queries]
        return PromptLayout(lengths, self.lengths_on_device.device, self.prefix_length)


@dataclass(frozen=True, slots=True)
class CollectionPolicy:
    """When a session collects dead branches. Learning how many are live waits for the device.

    Attributes:
        interval: Steps from one collection to the next, at least 1; None collects on no schedule.
        under_pressure: Whether to collect before the reserved room would have to grow.
    """

    interval: int | None = 16
    under_pressure: bool = True

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

    The result is as wide as the query with most live slots needs. Rows of other queries end in fillers:
    repetitions of some slot that no path refers to, so that no branch ever sees them.

    Attributes:
        old_slots: For every slot afterwards, which it was before. Shape: (Q, width), int64.
        new_slots: For every slot before, which it is afterwards; of no meaning for dead ones, but in range
            wherever anything is live. Shape: (Q, n), int64.
    """

    old_slots: Tensor
    new_slots: Tensor


def survivors(paths: Tensor, wanted: Tensor, num_slots: int) -> LiveSlots | None:
    """Mark the slots on the paths of some branches. Waits for the device, once.

    Args:
        paths: Slots on the path of every branch. Shape: (Q, B, depth), int64.
        wanted: Which branches matter. Shape: (Q, B), bool.
        num_slots: Slots written so far, n >= 1.

    Returns:
        None where nothing could be freed, since some query needs all of its slots.
    """
    queries = paths.shape[0]
    # One more column takes the paths of branches that do not matter.
    marked = torch.where(wanted[..., None], paths, num_slots).reshape(queries, -1)
    live = torch.zeros(queries, num_slots + 1, dtype=torch.bool, device=paths.device)
    live = live.scatter_(1, marked, value=True)[:, :num_slots]
    ranks = live.cumsum(1)
    width = int(ranks[:, -1].max())
    if width == num_slots:
        return None
    slots = torch.arange(num_slots, device=paths.device).expand(queries, -1)
    # Again one more column, for the dead. What is not written stays slot 0, the filler.
    old_slots = torch.zeros(queries, width + 1, dtype=torch.int64, device=paths.device)
    old_slots.scatter_(1, torch.where(live, ranks - 1, width), slots)
    return LiveSlots(old_slots[:, :width], (ranks - 1).clamp_(min=0))
