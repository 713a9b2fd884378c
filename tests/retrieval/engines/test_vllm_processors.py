"""The two processors, driven as vLLM's model runners drive them, against each other and the masks' laws."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from genret.retrieval.engines.title_masks import tap_path
from genret.retrieval.errors import InputError
from genret.retrieval.index.reader import Index
from tests import fake_vllm

REJECT = 0  # the padding token
TOLERANCE = 1e-5


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    return fake_vllm.install(monkeypatch)


def setup_of(index: Path, checkpoint: Path, **more: Any) -> Any:
    vocab_size = Index.open(index).vocab_size
    genret = {"indexes": {"titles": str(index), "same": str(index)}, "reject_token": REJECT, **more}
    return fake_vllm.config(genret, checkpoint, vocab_size)


@pytest.mark.parametrize("seed", range(12))
def test_both_processors_write_the_same_logits(
    processors: ModuleType, index: Path, checkpoint: Path, seed: int
) -> None:
    """Random walks; V1 requests swap places and are preempted, V2 rows come in any order."""
    rng = random.Random(seed)
    setup = setup_of(index, checkpoint)
    vocab = setup.model_config.get_vocab_size()
    opened = Index.open(index)
    extra = [rng.choice(fake_vllm.EXTRA) for _ in range(9)]
    prompts = [[rng.randrange(5, vocab) for _ in range(rng.randint(1, 6))] for _ in extra]
    v1 = fake_vllm.V1Batch(processors.TitleProcessor(setup, torch.device("cpu"), False))
    v2 = fake_vllm.V2Batch(processors, setup, len(extra), vocab)
    v1.add(extra, prompts)
    v2.add(extra, prompts)
    ended: set[int] = set()
    own, processed = [0.0] * len(extra), [0.0] * len(extra)
    for _ in range(14):
        logits = torch.randn(len(extra), vocab) * 3
        one = v1.apply(logits.clone())
        two = v2.apply(logits.clone(), rng.sample(range(len(extra)), len(extra)))
        for number, asked in enumerate(extra):
            if number in ended:
                continue
            assert torch.equal(one[number].isfinite(), two[number].isfinite()), (number, asked)
            there = one[number].isfinite()
            assert torch.allclose(one[number][there], two[number][there], atol=TOLERANCE)
            if asked is None:
                assert torch.equal(one[number], logits[number])
            if asked == {"genret": "nowhere"}:
                assert there.nonzero().flatten().tolist() == [REJECT]
            chances = torch.log_softmax(one[number].double(), 0)
            weights = chances.exp()
            if asked is not None and asked.get("genret_mode") == "sink":
                weights[REJECT] = 0.0  # a beam search goes on with titles
            token = int(torch.multinomial(weights, 1)) if weights.sum() > 0 else REJECT
            own[number] += float(torch.log_softmax(logits[number].double(), 0)[token])
            processed[number] += float(chances[token])
            v1.outs[number].append(token)
            v2.outs[number].append(token)
            if asked is not None and token in (opened.end_token_id, REJECT):
                ended.add(number)
                if token == opened.end_token_id and asked.get("genret_mode", "mask") != "mask":
                    assert processed[number] == pytest.approx(own[number], abs=1e-4)
        v1.swap(*rng.sample(range(len(extra)), 2))
        v1.preempt(rng.randrange(len(extra)))
    assert ended or all(asked is None for asked in extra)


def test_a_resumed_draw_of_v2_is_refused_and_others_go_on(
    processors: ModuleType, index: Path, checkpoint: Path
) -> None:
    setup = setup_of(index, checkpoint)
    vocab = setup.model_config.get_vocab_size()
    row = Index.open(index).row_token_ids(0)
    batch = fake_vllm.V2Batch(processors, setup, 2, vocab)
    batch.add([{"genret": "titles"}, {"genret": "titles", "genret_mode": "disc"}], [[9, 8], [7]])
    for place, token in enumerate(row[:-1]):
        batch.apply(torch.zeros(2, vocab), [0, 1])
        for out in batch.outs:
            out.append(token)
        if place == 0:
            batch.preempt(0)
            batch.preempt(1)
    by_mask, by_disc = batch.apply(torch.zeros(2, vocab), [1, 0])
    assert by_mask[row[-1]].isfinite()
    assert by_disc[row[-1]] == -math.inf
    assert by_disc[REJECT].isfinite()


def test_titles_may_begin_in_the_prompt(processors: ModuleType, index: Path, checkpoint: Path) -> None:
    """A beam search asks for a token at a time: the tokens before are the end of the prompt."""
    setup = setup_of(index, checkpoint)
    vocab = setup.model_config.get_vocab_size()
    row = Index.open(index).row_token_ids(3)
    extra = [{"genret": "titles", "genret_mode": "sink", "genret_written": n} for n in range(len(row))]
    prompts = [[9, 8, 7, *row[:n]] for n in range(len(row))]
    v1 = fake_vllm.V1Batch(processors.TitleProcessor(setup, torch.device("cpu"), False))
    v2 = fake_vllm.V2Batch(processors, setup, len(row), vocab)
    for batch in (v1, v2):
        batch.add(extra, prompts)
    logits = torch.randn(len(row), vocab)
    for found in (v1.apply(logits.clone()), v2.apply(logits.clone(), list(range(len(row))))):
        chances, raw = torch.log_softmax(found.double(), 1), torch.log_softmax(logits.double(), 1)
        for number, token in enumerate(row):
            assert chances[number, token] == pytest.approx(float(raw[number, token]), abs=1e-4)


def test_the_tap_leaves_raw_logits(
    processors: ModuleType, index: Path, checkpoint: Path, tmp_path: Path
) -> None:
    key, folder = "0a" * 16, tmp_path / "tap"
    setup = setup_of(index, checkpoint, tap=str(folder))
    vocab = setup.model_config.get_vocab_size()
    v1 = fake_vllm.V1Batch(processors.TitleProcessor(setup, torch.device("cpu"), False))
    v2 = fake_vllm.V2Batch(processors, setup, 2, vocab)
    logits = torch.randn(2, vocab)
    for batch, order in ((v1, []), (v2, [[1, 0]])):
        batch.add([{"genret_tap": key}, {"genret": "titles"}], [[5, 6], [7]])
        after = batch.apply(logits.clone(), *order)
        file = tap_path(folder, key, [5, 6])
        assert torch.equal(torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float32), logits[0])
        assert torch.equal(after[0], logits[0])
        file.unlink()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_wrong_settings_stop_the_engine_before_it_starts(
    processors: ModuleType, index: Path, checkpoint: Path
) -> None:
    def problem(change: Any = None, **genret: Any) -> str:
        setup = setup_of(index, checkpoint, **genret)
        if change is not None:
            setup.speculative_config = change
        with pytest.raises(InputError) as caught:
            processors.TitleProcessor(setup, torch.device("cpu"), False)
        return str(caught.value)

    assert "unknown: beams" in problem(beams=3)
    assert "must be a token that no title has" in problem(reject_token=None)
    assert "drafted tokens" in problem(change=object())
    token = Index.open(index).row_token_ids(0)[0]
    assert f"a title of 'titles' has {token}" in problem(reject_token=token)


def test_hidden_tokens_are_an_error(processors: ModuleType, index: Path, checkpoint: Path) -> None:
    setup = setup_of(index, checkpoint)
    batch = fake_vllm.V1Batch(processors.TitleProcessor(setup, torch.device("cpu"), False))
    batch.add([{"genret": "titles"}], [[5]])
    batch.apply(torch.zeros(1, setup.model_config.get_vocab_size()))
    batch.outs[0].append(-1)
    with pytest.raises(RuntimeError, match="--logits-processors"):
        batch.apply(torch.zeros(1, setup.model_config.get_vocab_size()))


def test_requests_are_checked_when_they_come(processors: ModuleType) -> None:
    for processor in (processors.TitleProcessor, processors.TitleProcessorV2):
        processor.validate_params(fake_vllm.sampling(None))
        with pytest.raises(ValueError, match="disc needs temperature 1"):
            processor.validate_params(
                fake_vllm.sampling({"genret": "a", "genret_mode": "disc"}, temperature=0.5)
            )
