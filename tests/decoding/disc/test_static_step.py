"""One step of DISC's draws as a pure function: in pieces, with shapes alone, and compiled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from decoding.disc.static_proposer import DrawWalk, Step, static_step
from decoding.trie.row_filter import FilteredTrie, RowFilter
from decoding.trie.title_trie import TitleTrie
from tests.fakes import end_with

END = 0
VOCAB = 5
ROWS = end_with(
    [(), (1,), (1, 2), (1, 2, 3), (2,), (2, 2), (4, 1), (1, 1, 1), (3, 3), (3, 4), (4, 4, 4, 4)], END
)


def step_arguments(depth: int, top_m: int | None, narrow: bool, temperature: bool = True):
    """Arguments of one step: three queries of four draws, `depth` tokens into random rows."""
    trie = TitleTrie.from_rows(ROWS, VOCAB)
    even = RowFilter.from_mask(np.arange(trie.num_rows) % 2 == 0)
    constraint = FilteredTrie(trie, [None, even, even]) if narrow else trie
    generator = torch.Generator().manual_seed(10 * depth + (top_m or 0))
    state = constraint.start(torch.arange(3).repeat_interleave(4))
    for _ in range(depth):
        owner, _, following = constraint.children(state)
        last = [int(torch.nonzero(owner == n).max()) if (owner == n).any() else -1 for n in range(12)]
        state = torch.stack([following[at] if at >= 0 else state[n] for n, at in enumerate(last)])
    done = constraint.is_final(state).view(3, 4)
    walk = DrawWalk(
        state=state.view(3, 4),
        log_weight=-torch.rand(3, 4, generator=generator, dtype=torch.float64),
        logprob=-torch.rand(3, 4, generator=generator, dtype=torch.float64),
        running=~done & torch.tensor([[True, True, True, False]] * 2 + [[True, False, True, True]]),
        finished=done,
        broken=torch.tensor(False),
    )
    return (
        constraint,
        walk,
        torch.randn(3, 4 if depth else 1, VOCAB, generator=generator),
        torch.rand(3, 4, generator=generator, dtype=torch.float64),
        torch.tensor([False, False, True]),
        torch.full((3, 4), -2.0, dtype=torch.float64),
        torch.tensor([1.0, 0.5, 2.0]) if temperature else None,
        constraint.width_at(depth),
        top_m,
    )


def tensors(step: Step) -> list[Tensor]:
    return [*step.walk, *step[1:]]


def equal(left: Step, right: Step) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(left), tensors(right), strict=True))


STEPS = pytest.mark.parametrize(
    ("depth", "top_m", "narrow"),
    [(0, None, False), (2, None, False), (0, 2, True), (1, None, True), (1, 3, False), (3, 1, True)],
)


@STEPS
def test_a_step_is_the_same_in_pieces(depth, top_m, narrow):
    arguments = step_arguments(depth, top_m, narrow)
    whole = static_step(*arguments)
    for cells in (1, 7, 30):
        assert equal(whole, static_step(*arguments, max_cells=cells))


@STEPS
def test_the_shapes_of_a_step_do_not_depend_on_values(depth, top_m, narrow):
    constraint, walk, *rest = step_arguments(depth, top_m, narrow)
    eager = static_step(constraint, walk, *rest)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def fake(value):
            return mode.from_tensor(value) if isinstance(value, Tensor) else value

        shapes = static_step(constraint, DrawWalk(*map(fake, walk)), *map(fake, rest))
    for mine, theirs in zip(tensors(eager), tensors(shapes), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)


def test_shapes_that_depend_on_values_would_be_noticed():
    constraint, walk, *_ = step_arguments(1, None, False)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.raises(DynamicOutputShapeException):
        constraint.children(mode.from_tensor(walk.state).flatten())


@pytest.mark.parametrize(("depth", "top_m", "narrow"), [(0, None, False), (1, None, True), (1, 3, False)])
def test_a_step_compiles_into_one_graph(depth, top_m, narrow):
    arguments = step_arguments(depth, top_m, narrow)
    torch.compiler.reset()
    compiled = torch.compile(static_step, fullgraph=True, backend="aot_eager")
    assert equal(static_step(*arguments), compiled(*arguments))


def test_draws_chosen_at_the_ends_of_their_cells_are_valid():
    """Uniforms next to 0 and 1 reach the first and the last child with any probability, never padding."""
    arguments = list(step_arguments(0, None, True, temperature=False))
    arguments[3] = torch.tensor([[2.0**-53, 0.5, 1 - 2.0**-53, 1 - 2.0**-53]] * 3, dtype=torch.float64)
    arguments[4] = torch.zeros(3, dtype=torch.bool)
    arguments[7] += 5  # more padding
    step = static_step(*arguments)
    running = arguments[1].running
    assert (step.token[running] >= 0).all()
    assert (step.walk.state[running] >= 0).all()
