"""Sessions over an engine of whole sequences: every branch has the logits of its own sequence."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from genret.decoding.errors import PromptTooLongError
from genret.decoding.sequence_model import SequenceModel, SequencePass
from tests.tree_oracles import Answer, drive, play
from tests.tree_scripts import Collect, random_script
from tests.verified_architectures import VOCAB


def logits_behind(prompt: tuple[int, ...], path: tuple[int, ...] = ()) -> Tensor:
    generator = torch.Generator().manual_seed(hash((*prompt, *path)) % 2**31)
    return torch.randn(VOCAB, generator=generator)


class HashedEngine:
    """Logits that follow from the whole sequence. `calls`: number of sequences of every call."""

    vocab_size = VOCAB
    device = torch.device("cpu")
    max_positions = 64

    def __init__(self) -> None:
        self.calls: list[int] = []

    def next_logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        self.calls.append(len(sequences))
        return torch.stack([logits_behind(one) for one in sequences])


def check(answers: Sequence[Answer]) -> None:
    assert len(answers) > 3
    for answer in answers:
        assert torch.equal(answer.logits, logits_behind(answer.prompt, answer.path))


@pytest.mark.parametrize("seed", range(40))
def test_branches_have_the_logits_of_their_sequences(seed: int) -> None:
    script = random_script(random.Random(seed), VOCAB)
    kept = tuple(one for one in script.operations if not isinstance(one, Collect))  # nothing is ever dead
    check(play(replace(script, operations=kept), SequenceModel(HashedEngine())).answers)


@pytest.mark.parametrize("seed", range(5))
def test_chains_have_the_logits_of_their_texts(seed: int) -> None:
    run = drive(SequenceModel(HashedEngine()), seed, 60, share=seed > 2)
    check(run.answers)
    with pytest.raises(ValueError, match="cannot keep 99"):
        run.session.rewind([99] * len(run.texts))


def test_passes_of_several_calls_are_one_call_of_the_engine() -> None:
    engine = HashedEngine()
    first, second = SequencePass(engine, [(5,), (6, 7)]), SequencePass(engine, [(8,)])
    assert first.joins(second)
    assert not first.joins(SequencePass(HashedEngine(), [(5,)]))
    ours, theirs = first.run_with([second])
    assert engine.calls == [3]
    assert torch.equal(ours, torch.stack([logits_behind((5,)), logits_behind((6, 7))]))
    assert torch.equal(theirs[0], logits_behind((8,)))


def test_what_does_not_fit_is_named() -> None:
    model = SequenceModel(HashedEngine())
    with pytest.raises(PromptTooLongError, match="prompt 1 has 65 tokens, the model takes at most 64"):
        model.prefill([[5], [5] * 65])
    with pytest.raises(PromptTooLongError, match="position 65 of 64"):
        model.prefill([[5] * 64]).step(torch.tensor([[0]]), torch.tensor([[4]]))
    with pytest.raises(PromptTooLongError, match="leaves no room"):
        model.share_prefix([5] * 64)
    for prompts, words in (([], "at least one"), ([[]], "prompt 0 is empty"), ([[VOCAB]], "has 61 to 61")):
        with pytest.raises(ValueError, match=words):
            model.prefill(prompts)
    with pytest.raises(ValueError, match="must go on after the prefix of 2"):
        model.prefill([[5, 6]], model.share_prefix([5, 6]))
    session = model.prefill([[5]])
    session.step(torch.tensor([[0]]), torch.tensor([[4]]))
    with pytest.raises(ValueError, match="before the first step"):
        session.keep_levels()
    with pytest.raises(ValueError, match="depth must be the next, 2"):
        session.step(torch.tensor([[0]]), torch.tensor([[4]]), 1)
