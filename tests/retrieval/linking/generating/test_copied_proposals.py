"""Texts that are proposed as their own copies: the same is written, in fewer passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval import Retriever
from retrieval.linking.generating.generator import MentionGenerator
from retrieval.linking.generating.windows import write_windows
from tests.checkpoints import make_checkpoint, make_index

TEXTS = (
    "They sailed to Paris [Texas] and back.",
    "Nile",
    "e\u0301t\u00e9 \U0001f469\u200d\U0001f52c at (Berlin) \\ x",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_is_written_with_and_without_proposals(tmp_path: Path, seed: int) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", seed=seed, max_positions=256)
    with Retriever.open(
        make_index(tmp_path, checkpoint), checkpoint, device="cpu", dtype="float64"
    ) as opened:
        generator = MentionGenerator(opened)
        jobs = [generator._job(text) for text in TEXTS]
        assert all(job is not None and job.copy for job in jobs)
        ready = [job for job in jobs if job is not None]
        with_copies = write_windows(opened.model, ready, generator.options, None, generator._speller)
        alone = [type(job)(job.prompt, job.grammar, job.max_tokens, job.seed) for job in ready]
        without = write_windows(opened.model, alone, generator.options, None, generator._speller)
    for one, other in zip(with_copies, without, strict=True):
        assert one.token_ids == other.token_ids  # type: ignore[union-attr]
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)  # type: ignore[union-attr]
