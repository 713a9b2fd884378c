"""The fake session writes what it is told, at whatever depth: what tests of decoders rest on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import TableModel, TableSession

VOCAB = 5
MODEL = TableModel.random(VOCAB, seed=1)
PROMPTS = [[3], [1, 2]]

Path = tuple[int, ...]


class Oracle:
    """A session and, beside it, the paths of all its branches; None is padding or below padding."""

    def __init__(self, session: TableSession, prompts: list[list[int]]) -> None:
        self.session, self.prompts = session, prompts
        self.levels: list[list[list[Path | None]]] = [[[()] for _ in prompts]]

    def grow(self, data: st.DataObject, depth: int) -> None:
        """Draw a frontier, write it and check every logit."""
        width = data.draw(st.integers(1, 3))
        above = len(self.levels[depth - 1][0])
        size = {"min_size": width, "max_size": width}
        parents = [data.draw(st.lists(st.integers(-1, above - 1), **size)) for _ in self.prompts]
        tokens = [data.draw(st.lists(st.integers(0, VOCAB - 1), **size)) for _ in self.prompts]
        logits = self.session.step(torch.tensor(parents), torch.tensor(tokens), depth)
        assert logits.shape == (len(self.prompts), width, VOCAB)
        if depth == len(self.levels):
            self.levels.append([[] for _ in self.prompts])
        for query, prompt in enumerate(self.prompts):
            for branch in range(width):
                parent = parents[query][branch]
                before = self.levels[depth - 1][query][parent] if parent >= 0 else None
                path = None if before is None else (*before, tokens[query][branch])
                self.levels[depth][query].append(path)
                expected = torch.zeros(VOCAB) if path is None else MODEL.logits(tuple(prompt), path)
                assert torch.equal(logits[query, branch], expected)

    def select(self, queries: list[int]) -> Oracle:
        session = self.session.select(queries, branches=True)
        other = Oracle(session, [self.prompts[query] for query in queries])
        other.levels = [[list(level[query]) for query in queries] for level in self.levels]
        return other


@settings(deadline=None)
@given(st.data())
def test_branches_go_on_from_any_level(data: st.DataObject) -> None:
    session = MODEL.prefill(PROMPTS)
    session.keep_levels()
    trees = Oracle(session, PROMPTS)
    for _ in range(data.draw(st.integers(1, 6))):
        trees.grow(data, data.draw(st.integers(1, len(trees.levels))))
    part = trees.select([1, 0, 1])
    for grown in (part, trees, part):
        grown.grow(data, data.draw(st.integers(1, len(grown.levels))))


@settings(deadline=None)
@given(st.data())
def test_branches_grow_downwards_without_levels(data: st.DataObject) -> None:
    trees = Oracle(MODEL.prefill(PROMPTS), PROMPTS)
    for depth in range(1, data.draw(st.integers(1, 4)) + 1):
        trees.grow(data, depth)
    part = trees.select([1])
    part.grow(data, len(part.levels))


def test_depths_are_refused_as_a_real_session_refuses_them() -> None:
    one = torch.zeros(2, 1, dtype=torch.int64)
    session = MODEL.prefill(PROMPTS)
    session.step(one, one)
    with pytest.raises(ValueError, match="depth must be 2, the next, without keep_levels, got 1"):
        session.step(one, one, 1)
    with pytest.raises(ValueError, match="at depth 0, got it at depth 1"):
        session.keep_levels()
    session = MODEL.prefill(PROMPTS)
    session.keep_levels()
    session.step(one, one, 1)
    for depth in (0, 3):
        with pytest.raises(ValueError, match=rf"depth must be in \[1, 2\], got {depth}"):
            session.step(one, one, depth)
    again = session.select([0])
    again.step(one[:1], one[:1])
    with pytest.raises(ValueError, match="without keep_levels"):
        again.step(one[:1], one[:1], 1)
