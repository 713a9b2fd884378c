"""Turns examples into token ids: a deterministic dataset, and the collators of both architectures.

Prompts and titles are tokenised by the very functions that serving uses, and cut to its limits: training
and measuring so meet no prompt and no title that the service would not. Item i of a run depends on the seed
and on i alone, so a resumed run sees what the killed one would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from decoding.errors import DecodingError
from decoding.model import architectures
from retrieval.errors import InputError, ModelError
from retrieval.loaded_model import Limits
from retrieval.prompts import CheckpointConfig, PromptTemplate
from retrieval.text import Rendering, TextTokenizer
from retrieval.training.examples import Example, ExampleGenerator, LinkedText, document_schema

IGNORED_LABEL = -100  # the convention of transformers' losses
_BATCHES_PER_BLOCK = 16


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """Token ids of one pair; `title_ids` ends with the end token."""

    prompt_ids: tuple[int, ...]
    title_ids: tuple[int, ...]


class ExampleEncoder:
    """Turns examples into token ids as serving would.

    Args:
        tokenizer: The checkpoint's tokenizer.
        config: The checkpoint's prompts and rendering.
        max_prompt_tokens: Longer prompts are cut at the end of the query.
        limits: Positions of the model; a prompt is cut to leave room for its title.

    Raises:
        InputError: prompts of that length have no room for a query.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        config: CheckpointConfig,
        max_prompt_tokens: int,
        limits: Limits | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits or Limits()
        self._rendering = config.rendering or Rendering()
        self._plain = config.prompt(config.default_prompt)
        self._mention = config.prompt(config.mention_prompt)
        self._answer = config.answer_template(None)
        encoder_positions = self._limits.encoder_positions
        self._max_prompt_tokens = min(max_prompt_tokens, encoder_positions or max_prompt_tokens)
        for template in (self._plain, self._mention):
            check_markup(template, tokenizer, self._max_prompt_tokens)
        self._annotate = config.annotate_template(None)
        self._markup: dict[PromptTemplate, int] = {}

    def encode(self, example: Example) -> EncodedExample | None:
        """Return the token ids, or None where the title cannot be written (see `fault`)."""
        template = self._plain if example.mention is None else self._mention
        text = example.query or "" if example.mention is None else template.mention_query(example.mention)
        row = self._tokenizer.encode_titles([example.title], self._rendering)[0]
        if row is None or self.fault(row) is not None:
            return None
        if example.linked is not None:
            return self._encode_linked(example.linked, row[-1])
        if example.document is not None:
            template = self._answer.showing(document_schema(example.document))
            # As answers are written, behind a prompt: some tokenizers put a blank before what begins a text.
            row = [*self._tokenizer.encode_text(example.document, after="\n"), row[-1]]
        limit = self._max_prompt_tokens
        room = self._limits.room(0)
        if room is not None and not self._limits.is_encoder_decoder:
            limit = min(limit, room - len(row))
        if limit <= self._num_markup(template):
            return None
        return EncodedExample(tuple(fit_prompt(template, self._tokenizer, text, limit)), tuple(row))

    def _encode_linked(self, linked: LinkedText, end_token: int) -> EncodedExample | None:
        """A window of a text, and the same with links; None where not even the mention fits."""

        def encoded(begin: int, end: int) -> EncodedExample:
            prompt = self._annotate.encode(self._tokenizer, linked.text[begin:end])
            # Behind a line end: some tokenizers put a blank before whatever begins a text.
            written = self._tokenizer.encode_text(linked.annotated(begin, end), after="\n")
            return EncodedExample(tuple(prompt), (*written, end_token))

        def fits(begin: int, end: int) -> bool:
            example = encoded(begin, end)
            room = self._limits.room(len(example.prompt_ids))
            return len(example.prompt_ids) <= self._max_prompt_tokens and (
                room is None or len(example.title_ids) <= room
            )

        window = linked.window(fits)
        return None if window is None else encoded(*window)

    def _num_markup(self, template: PromptTemplate) -> int:
        if template not in self._markup:
            self._markup[template] = num_markup_tokens(template, self._tokenizer)
        return self._markup[template]

    def fault(self, row: Sequence[int] | None) -> str | None:
        """Say why a title's row can follow no prompt and is never trained on; None where it can."""
        if row is None:
            return "merging with the prompt"
        if self._tokenizer.unknown_id in row[:-1]:
            return "not spellable"  # and so in no index
        room = self._limits.room(1 + self._num_markup(self._plain))
        if room is not None and len(row) > room:
            return "longer than the model's positions"
        return None


class Encodes(Protocol):
    """Turns examples into token ids: `ExampleEncoder`, or what makes pairs for a sentence encoder."""

    def encode(self, example: Example) -> EncodedExample | None:
        """Return the token ids, or None where there are none to learn from."""


class ExampleDataset(Dataset[EncodedExample]):
    """The first `length` examples of a run, read in order.

    Blocks of several batches are generated together and sorted by prompt length, so that a batch is
    padded little; the batches of a block come in random order.

    Args:
        generator: Where examples come from.
        encoder: How they become token ids.
        length: Number of examples of the run.
        batch_size: Examples per batch.
        seed: Fixes every example.
    """

    def __init__(
        self, generator: ExampleGenerator, encoder: Encodes, length: int, batch_size: int, seed: int
    ) -> None:
        self._generator = generator
        self._encoder = encoder
        self._length = length
        self._batch_size = batch_size
        self._seed = seed
        self._block: tuple[int, list[EncodedExample]] = (-1, [])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> EncodedExample:
        size = self._batch_size * _BATCHES_PER_BLOCK
        block, offset = divmod(index, size)
        if self._block[0] != block:
            self._block = (block, self._generate(block, size))
        return self._block[1][offset]

    def _generate(self, block: int, size: int) -> list[EncodedExample]:
        random = Random(f"{self._seed}/{block}")
        examples: list[EncodedExample] = []
        failures = 0
        while len(examples) < size:
            example = self._generator.draw(block * size + len(examples), random)
            encoded = self._encoder.encode(example)
            if encoded is not None:
                examples.append(encoded)
                continue
            failures += 1
            if failures > 10 * size:
                raise InputError(
                    "catalogue",
                    f"hardly any title can be written in this rendering, {example.title!r} cannot",
                )
        examples.sort(key=lambda e: (len(e.prompt_ids), e.prompt_ids))
        batches = [examples[i : i + self._batch_size] for i in range(0, size, self._batch_size)]
        random.shuffle(batches)
        return [example for batch in batches for example in batch]


@dataclass(frozen=True, slots=True)
class CausalCollator:
    """Batches for decoder-only models: `left padding | prompt | title | right padding`.

    All titles start in the same column, so logits are needed for the last columns only.
    """

    pad_id: int

    def __call__(self, examples: Sequence[EncodedExample]) -> dict[str, Tensor]:
        """Return input_ids, attention_mask, position_ids (B, T+L) and labels (B, L) of the last L columns."""
        prompt_width = max(len(e.prompt_ids) for e in examples)
        title_width = max(len(e.title_ids) for e in examples)
        shape = (len(examples), prompt_width + title_width)
        input_ids = torch.full(shape, self.pad_id)
        mask = torch.zeros(shape, dtype=torch.long)
        labels = torch.full((len(examples), title_width), IGNORED_LABEL)
        for i, e in enumerate(examples):
            start, end = prompt_width - len(e.prompt_ids), prompt_width + len(e.title_ids)
            input_ids[i, start:end] = torch.tensor(e.prompt_ids + e.title_ids)
            mask[i, start:end] = 1
            labels[i, : len(e.title_ids)] = torch.tensor(e.title_ids)
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        return {"input_ids": input_ids, "attention_mask": mask, "position_ids": positions, "labels": labels}


@dataclass(frozen=True, slots=True)
class Seq2SeqCollator:
    """Batches for encoder-decoder models: the prompt is encoded, the title is written.

    The decoder reads what serving puts before a title and then the title; how a model itself would shift
    labels to the right plays no part.

    Attributes:
        pad_id: Token id of padding.
        decoder_prompt: Tokens before every title (`decoding.model.architectures.decoder_prompt`). Not empty.
    """

    pad_id: int
    decoder_prompt: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.decoder_prompt:
            raise ValueError("decoder_prompt must not be empty: something has to stand before a title")

    def __call__(self, examples: Sequence[EncodedExample]) -> dict[str, Tensor]:
        """Return input_ids and attention_mask (B, T), decoder_input_ids (B, P + L - 1) and labels (B, L).

        Labels belong to the last L columns of the decoder's input.
        """
        prompt_width = max(len(e.prompt_ids) for e in examples)
        title_width = max(len(e.title_ids) for e in examples)
        before = len(self.decoder_prompt)
        input_ids = torch.full((len(examples), prompt_width), self.pad_id)
        mask = torch.zeros_like(input_ids)
        decoder_ids = torch.full((len(examples), before + title_width - 1), self.pad_id)
        labels = torch.full((len(examples), title_width), IGNORED_LABEL)
        for i, e in enumerate(examples):
            input_ids[i, : len(e.prompt_ids)] = torch.tensor(e.prompt_ids)
            mask[i, : len(e.prompt_ids)] = 1
            written = self.decoder_prompt + e.title_ids[:-1]
            decoder_ids[i, : len(written)] = torch.tensor(written)
            labels[i, : len(e.title_ids)] = torch.tensor(e.title_ids)
        return {
            "input_ids": input_ids,
            "attention_mask": mask,
            "decoder_input_ids": decoder_ids,
            "labels": labels,
        }


def limits_of_checkpoint(model: Any) -> Limits:
    """Return the limits of a `transformers.PreTrainedModel`, which is left as it is.

    Raises:
        ModelError: serving could not decode with it, or it does not say how a title begins.
    """
    try:
        architectures.check_supported(model.config)
        if not model.config.is_encoder_decoder:
            return Limits(architectures.position_limit(model))
        before_title = len(architectures.decoder_prompt(model))
    except DecodingError as error:
        raise ModelError(str(error)) from error
    positions = architectures.position_limit(model)
    return Limits(
        None if positions is None else positions - before_title,
        architectures.encoder_position_limit(model),
        True,
    )


def num_markup_tokens(template: PromptTemplate, tokenizer: TextTokenizer) -> int:
    """Return how many tokens of every prompt are the template's own."""
    return len(template.encode(tokenizer, ""))


def check_markup(template: PromptTemplate, tokenizer: TextTokenizer, limit: int) -> None:
    """Check that prompts of up to `limit` tokens have room for a query.

    Raises:
        InputError: the template's own tokens fill them.
    """
    markup = num_markup_tokens(template, tokenizer)
    if markup >= limit:
        raise InputError(
            "max_prompt_tokens",
            f"prompts may have {limit} tokens, but the template {template.name!r} alone has {markup}",
        )


def fit_prompt(template: PromptTemplate, tokenizer: TextTokenizer, text: str, limit: int | None) -> list[int]:
    """Return the prompt of a text; one of more than `limit` tokens loses the end of the text.

    What the template puts behind the text stays, since the model reads from it that a title is due.

    Args:
        template: The template; its own tokens must leave room (`check_markup`).
        tokenizer: The tokenizer.
        text: The query.
        limit: Most tokens, None for no bound.
    """
    ids = template.encode(tokenizer, text)
    if limit is None or len(ids) <= limit:
        return ids
    markup = template.encode(tokenizer, "")
    tail = 0
    while tail < len(markup) and markup[-1 - tail] == ids[-1 - tail]:
        tail += 1
    return [*ids[: limit - tail], *ids[len(ids) - tail :]]
