"""Trains a sentence encoder from scratch, for dense evidence: a text's vector is the mean of its tokens'.

The checkpoint is a DistilBERT without layers: learnt token vectors, normalised one by one. transformers and
`--vectors encoder:DIR` open it as any other encoder. It is trained to tell the texts of a query's entity from
those of the other entities in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, normalizers
from torch import Tensor
from torch.nn import functional
from transformers import DistilBertConfig, DistilBertModel

from genret.retrieval.arguments import named
from genret.retrieval.progress import StepProgress
from genret.retrieval.text import TextTokenizer
from genret.retrieval.training.dataset import EncodedExample
from genret.retrieval.training.examples import BESIDE_TEXTS, Example, ExampleGenerator, ExampleOptions
from genret.retrieval.training.forecast import RunForecast
from genret.retrieval.training.presets import PAD, save_tokenizer, train_tokenizer
from genret.retrieval.training.quality import Hits, count_hits, nearest_rankings
from genret.retrieval.training.trainer import BudgetTrainer, train_model
from genret.retrieval.training.training_data import SPLITS, TrainingQuery, training_queries
from genret.retrieval.training.training_run import (
    SAVE_DTYPES,
    TrainingPlan,
    asked_sets,
    begun_forecast,
    check_out,
    read_data,
    run_budget,
    sample,
    texts_by_kind,
    training_texts,
    write_metrics,
)
from genret.retrieval.vectors.embedder import FloatMatrix, TextEmbedder, VectorMethod, open_model
from genret.retrieval.vectors.encoder import EncoderEmbedder, mean_states, padded

VOCAB_SIZE = 8192
_DIMENSIONS = 256
_POSITIONS = 512  # the vectors of positions are zero and stay so: they only say how long a text may be
_TEMPERATURE = 0.1
_TEACHER_TEMPERATURE = 0.05
_WITH_QUERIES = ", training queries as texts"  # second figure of a set of queries


@dataclass(frozen=True, slots=True)
class EncodedPair(EncodedExample):
    """Token ids of a query (`prompt_ids`) and of a text of its entity (`title_ids`), and that text."""

    entity_id: str
    text: str


def encode_pair(tokenizer: TextTokenizer, max_tokens: int, example: Example) -> EncodedPair | None:
    """Return the tokens of a query and a text, cut to `max_tokens`; None if one of the two has none."""
    if example.query is None or example.text is None or example.entity_id is None:
        return None
    query, text = (tuple(tokenizer.encode_text(part)[:max_tokens]) for part in (example.query, example.text))
    return EncodedPair(query, text, example.entity_id, example.text) if query and text else None


class PairCollator:
    """Makes batches of queries and texts of their entities; a teacher embeds each text once."""

    def __init__(self, teacher: TextEmbedder | None = None) -> None:
        self._teacher = teacher
        self._taught: dict[str, FloatMatrix] = {}

    def __call__(self, pairs: Sequence[EncodedPair]) -> dict[str, Tensor]:
        """Return token ids and masks of queries and texts (B, T), and `same` and `taught` (B, B).

        `same` is true where a query and the text of another pair are of one entity; `taught`, with a
        teacher, are its similarities of the texts.
        """
        query_ids, query_mask = padded([pair.prompt_ids for pair in pairs])
        text_ids, text_mask = padded([pair.title_ids for pair in pairs])
        numbers: dict[str, int] = {}
        entities = torch.tensor([numbers.setdefault(pair.entity_id, len(numbers)) for pair in pairs])
        same = (entities[:, None] == entities).fill_diagonal_(False)
        batch = {
            "query_ids": query_ids,
            "query_mask": query_mask,
            "text_ids": text_ids,
            "text_mask": text_mask,
            "same": same,
        }
        if self._teacher is not None:
            new = list(dict.fromkeys(pair.text for pair in pairs if pair.text not in self._taught))
            self._taught.update(zip(new, self._teacher.embed_texts(new), strict=True))
            vectors = np.stack([self._taught[pair.text] for pair in pairs])
            batch["taught"] = torch.from_numpy(vectors @ vectors.T)
        return batch


class ContrastiveTrainer(BudgetTrainer):
    """Trainer whose loss makes a query most similar to the text of its entity, and that text to the query."""

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *_: Any, **unused: Any) -> Any:
        """Return the mean cross-entropy of the batch; with a teacher, plus the divergence from it."""
        queries = mean_states(model, inputs["query_ids"], inputs["query_mask"])
        texts = mean_states(model, inputs["text_ids"], inputs["text_mask"])
        right = torch.arange(len(texts), device=texts.device)
        # Another text of the same entity is no wrong answer.
        logits = (queries @ texts.T / _TEMPERATURE).masked_fill(inputs["same"], -torch.inf)
        loss = (functional.cross_entropy(logits, right) + functional.cross_entropy(logits.T, right)) / 2
        if "taught" in inputs:
            ours, theirs = texts @ texts.T / _TEACHER_TEMPERATURE, inputs["taught"] / _TEACHER_TEMPERATURE
            itself = torch.eye(len(texts), dtype=torch.bool, device=texts.device)
            loss = loss + functional.kl_div(
                ours.masked_fill(itself, -1e4).log_softmax(1),
                theirs.masked_fill(itself, -1e4).softmax(1),
                reduction="batchmean",
            )
        return loss


def run_encoder_training(
    plan: TrainingPlan, progress: StepProgress, approve: Callable[[RunForecast], None]
) -> dict[str, Any]:
    """Train an encoder as planned, write its folder and return its metrics; arguments as of `run_training`.

    Its errors, too; a teacher that cannot be loaded is a ModelError, or a MissingExtraError.
    """
    data = read_data(plan, progress)
    teacher = None
    if plan.teacher is not None:
        with named("vectors", "teacher"):
            teacher = open_model(VectorMethod.parse(plan.teacher))
    check_out(plan)
    torch.manual_seed(plan.trainer.seed)
    texts = training_texts(data)
    progress.phase("learning a tokenizer")
    # Lower case without accents halves the spellings to be learnt.
    plain = [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    tokenizer = train_tokenizer(texts, plan.vocab_size or VOCAB_SIZE, normalizers.Sequence(plain))
    model = build_encoder(tokenizer)
    asked = training_queries(data.queries)
    save_tokenizer(tokenizer, plan.out)
    budget = run_budget(plan, len(texts))
    drawn = ExampleOptions(first=BESIDE_TEXTS, later=BESIDE_TEXTS, texts=True)
    sets = asked_sets(plan, data)

    def measure(folder: Path, sets: Mapping[str, Sequence[TrainingQuery]]) -> dict[str, Hits]:
        embedder, found = EncoderEmbedder(folder), {}
        with_queries = {f"{name}{_WITH_QUERIES}": sets[name] for name in SPLITS if asked and name in sets}
        for some, more in ((sets, []), (with_queries, asked)):
            everything = [query for part in some.values() for query in part]
            rankings = iter(nearest_rankings(embedder, data.entities, everything, more) if everything else [])
            for name, part in some.items():
                found[name] = count_hits([next(rankings) for _ in part], part)
                progress.note(f"{name}, nearest texts  {found[name]}")
        return found

    sampled, some = sample(plan, data)

    def evaluate() -> None:
        with TemporaryDirectory() as folder:
            save_tokenizer(tokenizer, Path(folder))
            _save(model, Path(folder), plan.save_dtype)
            measure(Path(folder), {sampled: some})

    steps = train_model(
        ContrastiveTrainer,
        model,
        ExampleGenerator(data.entities, data.queries, drawn),
        partial(encode_pair, TextTokenizer.load(plan.out), min(plan.max_prompt_tokens, _POSITIONS)),
        PairCollator(teacher),
        work_folder=plan.out / "checkpoints",
        budget=budget,
        options=plan.trainer,
        progress=progress,
        evaluate=evaluate,
        forecast=begun_forecast(plan, model, texts_by_kind(data)),
        approve=approve,
    )
    progress.phase("saving")
    _save(model, plan.out, plan.save_dtype)
    progress.phase("evaluating")
    return write_metrics(plan, budget, steps, model, measure(plan.out, sets), {"teacher": plan.teacher})


def build_encoder(tokenizer: Tokenizer) -> DistilBertModel:
    """Return a randomly initialised encoder. Weights are drawn from torch's global generator."""
    config = DistilBertConfig(
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
        dim=_DIMENSIONS,
        n_layers=0,
        n_heads=1,
        dropout=0.0,
        max_position_embeddings=_POSITIONS,
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    model = DistilBertModel(config)
    model.embeddings.position_embeddings.weight.requires_grad_(False).zero_()
    return model


def _save(model: DistilBertModel, folder: Path, dtype: str) -> None:
    """Write a copy of the weights: the model in training stays in float32."""
    twin = DistilBertModel(deepcopy(model.config))
    twin.load_state_dict(model.state_dict())
    twin.type(SAVE_DTYPES[dtype]).save_pretrained(folder)
