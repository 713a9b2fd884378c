"""Answers with transformers' own `generate`: without any constraint, or along the trie of titles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig

from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.trie.logits_processor import TitleTrieLogitsProcessor
from genret.retrieval.errors import InputError
from genret.retrieval.evaluation.labelled_sets import INVALID, LabelledQuery, RankedAnswers, RankedEntity
from genret.retrieval.evaluation.methods.evaluated_method import (
    Answered,
    MethodAnswer,
    MethodMaker,
    MethodSpec,
)
from genret.retrieval.evaluation.methods.retriever_methods import (
    PendingQuery,
    QueryPrompts,
    answer_in_batches,
    seed_of,
)
from genret.retrieval.index.owners import FormOwners, Owners
from genret.retrieval.loaded_model import Limits
from genret.retrieval.methods.decoded_methods import owners_best_first
from genret.retrieval.normalize import normalize
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import RetrieveRequest
from genret.retrieval.vectors.encoder import padded


class GeneratedTitle(NamedTuple):
    """One title that `generate` wrote."""

    # Tokens behind the prompt, with the end token; without it the title was cut off
    token_ids: tuple[int, ...]
    row: int  # row of the index; -1 if it is none or was not looked up
    score: float  # log-probability of a beam; 0 for a sample and for greedy search


class GeneratingMethod:
    """Answers with transformers' `generate` and the checkpoint's own prompt templates.

    `unconstrained` takes what the model writes. It names an entity if its tokens are a row of the index, or
    its text is a title or an alias after the text policy; otherwise it is an invalid answer. `trie` samples
    one title, from the tokens that continue some title at each step; `greedy` takes the likeliest of them.
    An InputError refuses a model that is none of transformers'.
    """

    def __init__(self, spec: MethodSpec, maker: MethodMaker) -> None:
        retriever = maker.retriever
        if not isinstance(retriever.model, HFLanguageModel):
            raise InputError("method", f"{spec.name!r} needs a model of transformers, which this one is not")
        self.name = spec.name
        self.is_constrained = spec.family != "unconstrained"
        self.is_random = spec.beams is None
        self._retriever = retriever
        self._maker = maker
        self._num_beams = spec.beams
        self._generator = Generator(retriever, retriever.model, spec.beams, self.is_constrained)
        self._prompts = QueryPrompts(retriever)
        self._asked = RetrieveRequest("query")

    def answer(self, queries: Sequence[LabelledQuery], seed: int, report: Answered) -> list[RankedAnswers]:
        """Return a ranking per query, in order.

        Samples depend on the seed, on the queries and on the size of their batches.
        """
        if not self.is_constrained:
            self._maker.titles.named("", 1.0)  # the table of titles is made now, and in no query's time
        device = self._generator.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed_of(seed, self.name))
            return answer_in_batches(
                self._prompts, queries, lambda _: self._asked, self._ask, self._maker.batch_size, report
            )

    def _ask(self, batch: Sequence[PendingQuery]) -> list[MethodAnswer]:
        # From text to tokens again, as the retriever does it: for all methods that is part of their time.
        written = self._generator.write([self._prompts.encode(asked.request) for asked in batch])
        return [self._entities(titles) for titles in written]

    def _entities(self, titles: Sequence[GeneratedTitle]) -> tuple[RankedEntity, ...]:
        """Return the entities that the titles name, best first, each once."""
        ranked: dict[str, RankedEntity] = {}
        for title in titles:
            logprob = title.score if (self._num_beams or 1) > 1 else None
            for entity in self._named(title, 1.0 if logprob is None else logprob, logprob):
                ranked.setdefault(entity.entity_id, entity)
        return tuple(ranked.values())[: self._maker.k]

    def _named(self, title: GeneratedTitle, score: float, logprob: float | None) -> Iterator[RankedEntity]:
        """Yield the entities that one title names, those with the greatest share of it first."""
        index = self._retriever.index
        numbers = owners_best_first(index, self._owners(title))
        for number in numbers:
            entity = index.entity(number)
            yield RankedEntity(entity.entity_id, entity.title, score, logprob)
        # A text that does not end is no title; a title for which there is no room is no answer at all.
        if not numbers and not (self.is_constrained and self._generator.was_cut(title)):
            text = normalize(self._text(title))
            yield RankedEntity(INVALID + text, text, score, logprob)

    def _owners(self, title: GeneratedTitle) -> Owners:
        index, title_weight, row = self._retriever.index, self._retriever.config.title_weight, title.row
        if row < 0:
            if self.is_constrained or self._generator.was_cut(title):
                return Owners((), ())
            row = index.row_of(title.token_ids)
        if row < 0:
            return self._maker.titles.named(self._text(title), title_weight)
        return FormOwners(index, None, title_weight)(row)

    def _text(self, title: GeneratedTitle) -> str:
        """Return the written text without the prefix and suffix of titles."""
        rendering = self._retriever.index.rendering
        # The end token need not be a special one, which decoding leaves out.
        written = title.token_ids if self._generator.was_cut(title) else title.token_ids[:-1]
        text = self._retriever.tokenizer.decode(written).strip()
        return text.removeprefix(rendering.prefix.strip()).removesuffix(rendering.suffix.strip())


class Generator:
    """Calls `generate` for batches of prompts.

    `num_beams` titles are returned per prompt, or one sample at temperature 1 for None; `along_trie` lets
    only titles of the index be written.
    """

    def __init__(
        self, retriever: Retriever, model: HFLanguageModel, num_beams: int | None, along_trie: bool
    ) -> None:
        self._trie = retriever.trie if along_trie else None
        self._model = model
        self._num_beams = num_beams
        self._end = retriever.index.end_token_id
        self._longest = retriever.index.max_row_tokens
        self._limits = Limits.of(model)
        self.device = model.device

    def write(self, prompts: Sequence[Sequence[int]]) -> list[list[GeneratedTitle]]:
        """Return the titles that are written behind every prompt, best first."""
        # A long prompt must not take the room of others: where it matters, like rooms go together.
        groups: dict[int, list[int]] = {}
        for i, prompt in enumerate(prompts):
            room = self._limits.room(len(prompt))
            groups.setdefault(self._longest if room is None else min(room, self._longest), []).append(i)
        written: dict[int, list[GeneratedTitle]] = {}
        for room, members in groups.items():
            titles = self._write([prompts[i] for i in members], room)
            written.update(zip(members, titles, strict=True))
        return [written[i] for i in range(len(prompts))]

    def _write(self, prompts: Sequence[Sequence[int]], room: int) -> list[list[GeneratedTitle]]:
        inputs, num_before = self._inputs(prompts)
        processor = None
        if self._trie is not None:
            processor = TitleTrieLogitsProcessor(self._trie, num_before, self._end, len(prompts))
        processors = [] if processor is None else [processor]
        beams = self._num_beams or 1
        pretrained: Any = self._model.pretrained
        with _own_generation_config(pretrained, self._config(room)), torch.no_grad():
            out = pretrained.generate(**inputs, logits_processor=processors)
        rows = [-1] * len(out.sequences) if processor is None else processor.rows(out.sequences).tolist()
        # One beam is greedy search, which returns no scores.
        scores = out.sequences_scores.tolist() if beams > 1 else [0.0] * len(rows)
        sequences = [self._cut(ids) for ids in out.sequences[:, num_before:].tolist()]
        written = [GeneratedTitle(*it) for it in zip(sequences, rows, scores, strict=True)]
        return [written[at : at + beams] for at in range(0, len(written), beams)]

    def was_cut(self, title: GeneratedTitle) -> bool:
        """Whether the title has no end: it grew longer than the longest of the index, or than the room."""
        return title.token_ids[-1:] != (self._end,)

    def _cut(self, ids: list[int]) -> tuple[int, ...]:
        """Return the tokens up to the end token, with it; `generate` pads a batch behind it."""
        return tuple(ids[: ids.index(self._end) + 1] if self._end in ids else ids)

    def _inputs(self, prompts: Sequence[Sequence[int]]) -> tuple[dict[str, Any], int]:
        """Return the padded batch, and the number of tokens before the titles in every row."""
        is_decoder_only = not self._model.is_encoder_decoder
        side = "left" if is_decoder_only else "right"  # decoders read on where the prompt ends
        ids, mask = padded(prompts, self._end, side)
        inputs: dict[str, Any] = {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}
        if is_decoder_only:
            return inputs, ids.shape[1]
        before = torch.tensor([self._model.decoder_prompt] * len(prompts), device=self.device)
        return {**inputs, "decoder_input_ids": before}, before.shape[1]

    def _config(self, room: int) -> GenerationConfig:
        beams = self._num_beams
        how: dict[str, Any] = {"do_sample": False}
        if beams is None:
            how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        elif beams > 1:  # greedy search takes no settings of beams
            how |= {"num_beams": beams, "num_return_sequences": beams}
            how |= {"length_penalty": 0.0, "early_stopping": "never"}
        if self._model.is_encoder_decoder:
            how["decoder_start_token_id"] = self._model.decoder_prompt[0]
        make: Any = GenerationConfig  # untyped
        config: GenerationConfig = make(
            **how,
            max_new_tokens=room,
            eos_token_id=self._end,
            pad_token_id=self._end,
            output_scores=(beams or 1) > 1,
            return_dict_in_generate=True,
        )
        return config


@contextmanager
def _own_generation_config(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Replace the checkpoint's configuration, which may force tokens or forbid repetitions."""
    before = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before
