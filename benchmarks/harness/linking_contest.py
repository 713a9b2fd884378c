"""The same mentions linked in different ways, each with its answers: best entities and their scores."""

from __future__ import annotations

import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import PreTrainedModel

from genret.retrieval.index.reader import Index
from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.link_options import LinkOptions, WorkerOptions
from genret.retrieval.linking.linker import DocumentLinker
from genret.retrieval.linking.run import OutputOptions, RunnerOptions, link_corpus
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Mention
from harness.dictionary_trie import Node
from harness.made_mentions import as_documents

_SHARDS_PER_WORKER = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """The best entity of a mention; None: NIL."""

    entity_id: str | None
    logprob: float | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two ways give the same answers.

    Attributes:
        num_equal: Mentions with the same entity.
        num_mentions: Of how many.
        largest_difference: Between the log-probabilities where it is the same.
    """

    num_equal: int
    num_mentions: int
    largest_difference: float

    @classmethod
    def of(cls, one: Sequence[Answer], other: Sequence[Answer]) -> Agreement:
        """Compare answers mention by mention."""
        same = [(a, b) for a, b in zip(one, other, strict=True) if a.entity_id == b.entity_id]
        differences = [
            abs(a.logprob - b.logprob) for a, b in same if a.logprob is not None and b.logprob is not None
        ]
        return cls(len(same), len(one), max(differences, default=0.0))


def link_singly(retriever: Retriever, mentions: Sequence[Mention], k: int) -> list[Answer]:
    """One call of `Retriever.link` per mention."""
    return [_best(retriever.link(mention, k=k)[0].candidates) for mention in mentions]


def link_together(retriever: Retriever, mentions: Sequence[Mention], k: int, batch_size: int) -> list[Answer]:
    """One call of `Retriever.link` for all."""
    return [_best(result.candidates) for result in retriever.link(mentions, k=k, batch_size=batch_size)]


def link_as_documents(
    retriever: Retriever, mentions: Sequence[Mention], k: int, batch_size: int
) -> list[Answer]:
    """A `DocumentLinker` of its own, with an empty cache."""
    worker = WorkerOptions(str(retriever.index.path), batch_size=batch_size)
    linker = DocumentLinker(retriever, LinkOptions(k=k), worker)
    blocks = linker.link(as_documents(mentions), LinkCounts(), _refuse)
    return [Answer(row["entity_id"], row["logprob"]) for rows in blocks for row in rows]


def run(documents: Path, number: int, out: Path, index: Path, k: int, batch_size: int, workers: int) -> float:
    """Link a file with worker processes, which begin with nothing in their memory, and return the seconds."""
    shutil.rmtree(out, ignore_errors=True)
    size = max(1, math.ceil(number / (workers * _SHARDS_PER_WORKER)))
    summary = link_corpus(
        CorpusOptions((str(documents),), shard_documents=size),
        OutputOptions(str(out)),
        WorkerOptions(str(index), batch_size=batch_size),
        LinkOptions(k=k),
        RunnerOptions(num_workers=workers),
    )
    if summary.counts.num_failed or summary.counts.num_rows != number:
        raise RuntimeError(f"{out}: expected {number} rows and no failure, got {summary.counts}")
    return summary.seconds


def answers_in(out: Path) -> list[Answer]:
    """Read what a run wrote."""
    found = []
    for part in sorted(out.glob("*.parquet")):
        table = pq.read_table(part, columns=["entity_id", "logprob"])
        found += [Answer(row["entity_id"], row["logprob"]) for row in table.to_pylist()]
    return found


class Generation:
    """transformers' `generate` with a dictionary of titles, on the prompts that `Retriever.link` makes.

    Args:
        model: Stock, of the same checkpoint.
        retriever: Makes the prompts, and knows the titles.
        trie: Of all rows of the index.
        beams: As many as `Retriever.link` keeps.
    """

    def __init__(self, model: PreTrainedModel, retriever: Retriever, trie: Node, beams: int) -> None:
        self._model = model
        self._retriever = retriever
        self._trie = trie
        self._beams = beams
        self._end = retriever.index.end_token_id
        self._max_tokens = retriever.trie.max_depth

    def link(self, mentions: Sequence[Mention], batch_size: int) -> list[Answer]:
        """Link mentions in batches of neighbours in length, padded on the left."""
        config, tokenizer = self._retriever.config, self._retriever.tokenizer
        template = config.prompt(config.mention_prompt)
        prompts = [template.encode(tokenizer, template.mention_query(mention)) for mention in mentions]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: dict[int, Answer] = {}
        for at in range(0, len(order), batch_size):
            batch = order[at : at + batch_size]
            answers.update(zip(batch, self._generate([prompts[i] for i in batch]), strict=True))
        return [answers[i] for i in range(len(prompts))]

    @torch.no_grad()
    def _generate(self, prompts: Sequence[list[int]]) -> list[Answer]:
        width = max(map(len, prompts))
        padded = torch.tensor([[self._end] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        output: Any = self._model.generate(
            padded,
            attention_mask=mask,
            num_beams=self._beams,
            num_return_sequences=self._beams,
            max_new_tokens=self._max_tokens,
            do_sample=False,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
            pad_token_id=self._end,
            eos_token_id=self._end,
            prefix_allowed_tokens_fn=lambda _, written: self._allowed(written[width:].tolist()),
        )
        written = output.sequences[:, width:].reshape(len(prompts), self._beams, -1).tolist()
        scores = output.sequences_scores.reshape(len(prompts), self._beams).tolist()
        return [self._answer(rows, column) for rows, column in zip(written, scores, strict=True)]

    def _allowed(self, written: list[int]) -> list[int]:
        """Walk from the root, as `prefix_allowed_tokens_fn` has to; ended beams are padded."""
        node = self._trie
        for token in written:
            node = node.get(token, {})
        return list(node) or [self._end]

    def _answer(self, rows: Iterable[list[int]], scores: Iterable[float]) -> Answer:
        """Sum the probabilities of the titles found by entity, as `Retriever.link` does."""
        index = self._retriever.index
        by_entity: defaultdict[int, list[float]] = defaultdict(list)
        for row, score in zip(rows, scores, strict=True):
            rank = -1 if self._end not in row else index.row_of(row[: row.index(self._end) + 1])
            if rank >= 0 and score > -math.inf:
                for number in index.entities_of(rank):
                    by_entity[number].append(score)
        if not by_entity:
            return Answer(None, None)
        sums = {number: math.log(math.fsum(map(math.exp, found))) for number, found in by_entity.items()}
        best = max(sums, key=lambda number: (sums[number], -number))
        return Answer(index.entity(best).entity_id, sums[best])


def dictionary_of(index: Index) -> Node:
    """Return the dictionary trie of all rows of an index."""
    root: Node = {}
    for rank in range(index.num_rows):
        node = root
        for token in index.row_token_ids(rank):
            node = node.setdefault(token, {})
    return root


def _best(candidates: Sequence[Any]) -> Answer:
    return Answer(candidates[0].entity_id, candidates[0].logprob) if candidates else Answer(None, None)


def _refuse(complaint: str) -> None:
    raise RuntimeError(complaint)
