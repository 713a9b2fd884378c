"""The loss is what serving scores: minus the log-probability of a title in a decode session."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, TrainingArguments

from decoding.model.architectures import decoder_prompt
from decoding.model.hf_model import HFLanguageModel
from retrieval.training.dataset import CausalCollator, EncodedExample, Seq2SeqCollator
from retrieval.training.trainer import Budget, TitleTrainer, TrainerOptions
from retrieval.training.training_run import _copy
from tests.tiny_transformers import BOS, END, PAD, build

VOCABULARY = 20
EXAMPLES = [
    EncodedExample((3, 9, 4, 11), (7, 8, END)),
    EncodedExample((5, 4), (6, END)),
    EncodedExample((12, 3, 3), (7, 8, 9, 10, 11, END)),
]


def loss(model: PreTrainedModel, examples: list[EncodedExample], folder: Path) -> float:
    """Mean loss per token, by the trainer's own collator and loss."""
    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    trainer = TitleTrainer(model=model, options=TrainerOptions(), budget=Budget(1, None), args=arguments)
    if model.config.is_encoder_decoder:
        batch = Seq2SeqCollator(PAD, decoder_prompt(model))(examples)
    else:
        batch = CausalCollator(PAD)(examples)
    with torch.no_grad():
        return float(trainer.compute_loss(model.eval(), batch))


def served(model: HFLanguageModel, example: EncodedExample) -> float:
    """Log-probability of the title, token by token in a session."""
    session = model.prefill([example.prompt_ids])
    logits, total = session.root_logits[0], 0.0
    for token in example.title_ids:
        total += float(logits.double().log_softmax(-1)[token])
        logits = session.step(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[token]]))[0, 0]
    return total


def with_forced_bos(name: str, forced: int | None) -> PreTrainedModel:
    model = build(name, VOCABULARY)
    model.generation_config.forced_bos_token_id = forced
    return model


@pytest.mark.parametrize(
    ("name", "forced"),
    [("bart", None), ("bart", BOS), ("t5", None), ("t5", BOS), ("llama", None), ("gpt2", None)],
)
def test_the_loss_of_a_title_is_its_log_probability_in_a_session(
    name: str, forced: int | None, tmp_path: Path
) -> None:
    model = with_forced_bos(name, forced)
    serving = HFLanguageModel(deepcopy(model))
    if serving.is_encoder_decoder:
        assert len(serving.decoder_prompt) == (1 if forced is None else 2)
    scores = [served(serving, example) for example in EXAMPLES]
    for example, score in zip(EXAMPLES, scores, strict=True):
        assert -len(example.title_ids) * loss(model, [example], tmp_path) == pytest.approx(score, abs=1e-4)
    num_tokens = sum(len(example.title_ids) for example in EXAMPLES)
    # Together they are padded on both sides, which must not show.
    assert -num_tokens * loss(model, EXAMPLES, tmp_path) == pytest.approx(math.fsum(scores), abs=1e-3)


def test_a_forced_first_token_changes_the_loss(tmp_path: Path) -> None:
    plain = loss(with_forced_bos("bart", None), EXAMPLES, tmp_path)
    assert abs(loss(with_forced_bos("bart", BOS), EXAMPLES, tmp_path) - plain) > 1e-2


def test_the_copy_that_is_measured_during_training_begins_titles_alike() -> None:
    model = with_forced_bos("bart", BOS)
    assert decoder_prompt(_copy(model)) == decoder_prompt(model) == (END, BOS)
