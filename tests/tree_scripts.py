"""What callers may do with decode sessions, as data: prompts, frontiers, collections, selections.

A `Script` is valid by construction and knows no model, so one script is played on every architecture.
`BranchTruth` follows parent pointers and is what a session is held to.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from genret.decoding.model.token_tree import CollectionPolicy

Row = tuple[int, ...]

MOST_QUERIES = 3
MOST_BRANCHES = 5
LONGEST_PREFIX = 12
LONGEST_REST = 14
MOST_STEPS = 14


@dataclass(frozen=True, slots=True)
class Grow:
    """One frontier. `depth` None is the next; parents and tokens as in `DecodeSession.step`, (Q, B)."""

    session: int
    depth: int | None
    parents: tuple[Row, ...]
    tokens: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Collect:
    """Collect at once."""

    session: int


@dataclass(frozen=True, slots=True)
class Select:
    """Make a new session, numbered after all others, out of some queries of an earlier one."""

    session: int
    queries: Row
    branches: bool
    keep_levels: bool


Operation = Grow | Collect | Select


@dataclass(frozen=True, slots=True)
class Script:
    """A batch of prompts and what becomes of it.

    Attributes:
        prompts: Whole prompts. Length Q.
        prefix: How many of their first tokens all of them share and one prefix holds; 0 is no prefix.
        policy: When dead branches are collected.
        keep_levels: Whether the first session keeps its levels.
        operations: In order. Session 0 is the one prefilled.
    """

    prompts: tuple[Row, ...]
    prefix: int
    policy: CollectionPolicy
    keep_levels: bool
    operations: tuple[Operation, ...]


class Branch:
    """A written token: a link to the branch it continues, None for the prompt's children.

    Attributes:
        path: Tokens from the prompt on, this one included; None on padding and whatever continues it.
    """

    __slots__ = ("is_padding", "parent", "token")

    def __init__(self, parent: Branch | None, token: int, is_padding: bool) -> None:
        self.parent = parent
        self.token = token
        self.is_padding = is_padding

    @property
    def path(self) -> Row | None:
        """Tokens from the prompt on; None on padding and whatever continues it."""
        return None if self.is_padding else tuple(branch.token for branch in self.ancestors())[::-1]

    def ancestors(self) -> Iterator[Branch]:
        """Itself first, then upwards."""
        branch: Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent


class BranchTruth:
    """The branches of one session by parent pointers.

    Args:
        prompts: Of its queries.
        keep_levels: Whether any depth may be grown again.
    """

    def __init__(self, prompts: Sequence[Row], keep_levels: bool) -> None:
        self.prompts = tuple(prompts)
        self.keep_levels = keep_levels
        # Depth - 1, query, column. Without levels only the last depth's are kept.
        self._levels: dict[int, list[list[Branch]]] = {}
        self.depth = 0

    def columns(self, depth: int) -> int:
        """Branches every query has at a depth; the prompt is the only one at depth 0."""
        return 1 if depth == 0 else len(self._levels[depth][0])

    def frontier(self) -> list[list[Branch]]:
        """The branches of the greatest depth, by query."""
        return self._levels[self.depth]

    def grow(self, step: Grow) -> list[list[Branch]]:
        """The new branches, by query."""
        depth = self.depth + 1 if step.depth is None else step.depth
        new: list[list[Branch]] = []
        for query, (parents, tokens) in enumerate(zip(step.parents, step.tokens, strict=True)):
            above = self._levels[depth - 1][query] if depth > 1 else None
            row = []
            for number, token in zip(parents, tokens, strict=True):
                parent = above[number] if above is not None and number >= 0 else None
                is_padding = number < 0 or (parent is not None and parent.is_padding)
                row.append(Branch(parent, token, is_padding))
            new.append(row)
        if not self.keep_levels:
            self._levels = {depth: new}
        elif depth in self._levels:
            self._levels[depth] = [old + row for old, row in zip(self._levels[depth], new, strict=True)]
        else:
            self._levels[depth] = new
        self.depth = max(self.depth, depth)
        return new

    def select(self, step: Select) -> BranchTruth:
        """The truth about a selection."""
        prompts = [self.prompts[query] for query in step.queries]
        if not step.branches:
            return BranchTruth(prompts, step.keep_levels)
        other = BranchTruth(prompts, self.keep_levels)
        other.depth = self.depth
        other._levels = {
            depth: [list(level[query]) for query in step.queries] for depth, level in self._levels.items()
        }
        return other

    def num_live(self, query: int, columns: Collection[int] | None = None) -> int:
        """Branches of a query on the path of some of the last frontier's, None for all, padding included."""
        frontier = self.frontier()[query]
        chosen = frontier if columns is None else [frontier[column] for column in columns]
        return len({id(ancestor) for branch in chosen for ancestor in branch.ancestors()})


def random_script(rng: random.Random, vocab_size: int) -> Script:
    """Any valid script; a few queries, prompts from one token on, frontiers that cross, end and collapse."""
    prefix = rng.choice([0, 0, rng.randint(1, 3), rng.randint(4, LONGEST_PREFIX)])
    shared = random_row(rng, prefix, vocab_size)
    prompts = tuple(
        shared + random_row(rng, rng.choice([1, 2, rng.randint(1, LONGEST_REST)]), vocab_size)
        for _ in range(rng.randint(1, MOST_QUERIES))
    )
    policy = CollectionPolicy(rng.choice([None, None, 1, 2, 3, 5]), rng.random() < 0.6)
    keep_levels = rng.random() < 0.25
    truths = [BranchTruth(prompts, keep_levels)]
    operations: list[Operation] = []
    for _ in range(rng.randint(4, MOST_STEPS)):
        # The latest session does most; the ones it came from go on too, and neither disturbs the other.
        number = rng.choice([len(truths) - 1, len(truths) - 1, rng.randrange(len(truths))])
        kind = rng.random()
        if kind < 0.12:
            operations.append(Collect(number))
        elif kind < 0.22 and len(truths) < 3:
            operations.append(_random_selection(rng, number, truths[number]))
            truths.append(truths[number].select(operations[-1]))
        step = _random_growth(rng, number, truths[number], vocab_size)
        truths[number].grow(step)
        operations.append(step)
    return Script(prompts, prefix, policy, keep_levels, tuple(operations))


def _random_selection(rng: random.Random, session: int, truth: BranchTruth) -> Select:
    queries = tuple(rng.randrange(len(truth.prompts)) for _ in range(rng.randint(1, MOST_QUERIES)))
    return Select(session, queries, branches=rng.random() < 0.7, keep_levels=rng.random() < 0.25)


def _random_growth(rng: random.Random, session: int, truth: BranchTruth, vocab_size: int) -> Grow:
    depth = rng.randint(1, truth.depth + 1) if truth.keep_levels else truth.depth + 1
    # A narrow first frontier reserves little room, so that wide ones soon press for more.
    width = rng.choice([1, rng.randint(1, MOST_BRANCHES)]) if depth == 1 else rng.randint(1, MOST_BRANCHES)
    above = truth.columns(depth - 1)
    parents = tuple(_random_parents(rng, width, above) for _ in truth.prompts)
    tokens = tuple(random_row(rng, width, vocab_size) for _ in truth.prompts)
    return Grow(session, None if depth == truth.depth + 1 else depth, parents, tokens)


def _random_parents(rng: random.Random, width: int, above: int) -> Row:
    """Parents of one query's branches: any, all the same, in reverse, or all padding."""
    way = rng.random()
    if way < 0.05:
        return (-1,) * width
    if way < 0.2:
        return (rng.randrange(above),) * width
    if way < 0.35:
        return tuple((above - 1 - column) % above for column in range(width))
    return tuple(-1 if rng.random() < 0.15 else rng.randrange(above) for _ in range(width))


def random_row(rng: random.Random, count: int, vocab_size: int) -> Row:
    return tuple(rng.randrange(3, vocab_size) for _ in range(count))
