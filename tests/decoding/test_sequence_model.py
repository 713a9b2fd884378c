"""Sessions over an engine of whole sequences: every branch has the logits of its own sequence."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from genret.decoding.beam_search import beam_search
from genret.decoding.errors import PromptTooLongError
from genret.decoding.params import BeamParams
from genret.decoding.row_scores import score_rows
from genret.decoding.sequence_model import SequenceModel, SequencePass, SequenceSession
from genret.decoding.trie.title_trie import TitleTrie
from tests.fakes import TableModel
from tests.tree_scripts import BranchTruth, Grow, Select, random_script

VOCAB = 24


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


def check_roots(session: SequenceSession, prompts: Sequence[tuple[int, ...]]) -> None:
    assert torch.equal(session.root_logits, torch.stack([logits_behind(prompt) for prompt in prompts]))


@pytest.mark.parametrize("seed", range(40))
def test_branches_have_the_logits_of_their_sequences(seed: int) -> None:
    script = random_script(random.Random(seed), VOCAB)
    model = SequenceModel(HashedEngine())
    prefix = model.share_prefix(script.prompts[0][: script.prefix]) if script.prefix else None
    sessions = [model.prefill(script.prompts, prefix)]
    truths = [BranchTruth(script.prompts, script.keep_levels)]
    if script.keep_levels:
        sessions[0].keep_levels()
    for operation in script.operations:
        if isinstance(operation, Grow):
            truth = truths[operation.session]
            logits = sessions[operation.session].step(
                torch.tensor(operation.parents), torch.tensor(operation.tokens), operation.depth
            )
            assert logits.isfinite().all()
            for query, row in enumerate(truth.grow(operation)):
                for column, branch in enumerate(row):
                    if branch.path is not None:
                        expected = logits_behind(truth.prompts[query], branch.path)
                        assert torch.equal(logits[query, column], expected)
        elif isinstance(operation, Select):
            sessions.append(sessions[operation.session].select(operation.queries, operation.branches))
            truths.append(truths[operation.session].select(operation))
            check_roots(sessions[-1], truths[-1].prompts)
            if operation.keep_levels and not operation.branches:
                sessions[-1].keep_levels()


def test_chains_have_the_logits_of_their_texts() -> None:
    rng = random.Random(3)
    prompts = [(5, 6), (7,), (8, 9, 10)]
    chains = SequenceModel(HashedEngine()).prefill_chains(prompts)
    texts: list[list[int]] = [[], [], []]
    for _ in range(60):
        chunks = [[rng.randrange(VOCAB) for _ in range(rng.choice((0, 1, 3)))] for _ in prompts]
        if any(chunks):
            logits = chains.extend(chunks)
            for query, chunk in enumerate(chunks):
                for place, token in enumerate(chunk):
                    texts[query].append(token)
                    assert torch.equal(
                        logits[query, place], logits_behind(prompts[query], tuple(texts[query]))
                    )
        lengths = [rng.randint(max(0, len(text) - 4), min(len(text), 20)) for text in texts]
        chains.rewind(lengths)
        texts = [text[:length] for text, length in zip(texts, lengths, strict=True)]
        assert chains.lengths == tuple(lengths)
    one = chains.select([2])
    assert torch.equal(one.extend([[4]])[0, 0], logits_behind(prompts[2], (*texts[2], 4)))
    with pytest.raises(ValueError, match="cannot keep 99"):
        chains.rewind([99, 0, 0])


def test_decoders_find_the_same_as_over_tables() -> None:
    rng = random.Random(1)
    rows = {(*(rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 4))), 1) for _ in range(60)}
    trie = TitleTrie.from_rows(rows, VOCAB)
    prompts = [(5, 6, 7), (9,)]
    tables = TableModel(VOCAB, logits_behind)
    model = SequenceModel(HashedEngine())
    for params in (BeamParams(k=5, beam_size=5), BeamParams(k=5, beam_size=3, exact=True, exact_budget=500)):
        found = beam_search(model.prefill(prompts), trie, [params, params])
        expected = beam_search(tables.prefill(prompts), trie, [params, params])
        assert [one.hypotheses for one in found] == [one.hypotheses for one in expected]
    asked = [[list(row) for row in sorted(rows)][:20], [[2, 1], [3, 4, 1]]]
    assert score_rows(model.prefill(prompts), asked) == score_rows(tables.prefill(prompts), asked)


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
    with pytest.raises(PromptTooLongError, match="prompt 1 has 65 tokens, the engine takes at most 64"):
        model.prefill([[5], [5] * 65])
    with pytest.raises(PromptTooLongError, match="position 65 of 64"):
        model.prefill([[5] * 64]).step(torch.tensor([[0]]), torch.tensor([[4]]))
    with pytest.raises(PromptTooLongError, match="leaves no room"):
        model.share_prefix([5] * 64)
    for prompts, words in (([], "at least one"), ([[]], "prompt 0 is empty"), ([[VOCAB]], "has 24 to 24")):
        with pytest.raises(ValueError, match=words):
            model.prefill(prompts)
    with pytest.raises(ValueError, match="does not continue the prefix"):
        model.prefill([[5, 6]], model.share_prefix([5, 6]))
    session = model.prefill([[5]])
    session.step(torch.tensor([[0]]), torch.tensor([[4]]))
    with pytest.raises(ValueError, match="before the first step"):
        session.keep_levels()
    with pytest.raises(ValueError, match="depth must be the next, 2"):
        session.step(torch.tensor([[0]]), torch.tensor([[4]]), 1)
