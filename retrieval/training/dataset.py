"""Turns examples into token ids: a deterministic dataset, and the collators of both architectures.

Prompts and titles are tokenised and cut as in serving. Item i of a run depends on the seed and on i alone, so
a resumed run sees the same examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from genret.decoding.errors import DecodingError
from genret.decoding.model import architectures
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.loaded_model import Limits
from genret.retrieval.prompts import CheckpointConfig, PromptTemplate
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.training.examples import Example, ExampleGenerator, LinkedText, document_schema
from genret.retrieval.vectors.encoder import padded

IGNORED_LABEL = -100  # the convention of transformers' losses
BATCHES_PER_BLOCK = 16  # batches whose examples are made together


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """Token ids of one pair; `title_ids` ends with the end token."""

    prompt_ids: tuple[int, ...]
    title_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.title_ids)


class ExampleEncoder:
    """Turns examples into token ids as serving would.

    Prompts are cut to `max_prompt_tokens`, at the end of the query, and leave room for their title within the
    `limits` of the model. An `InputError` says that such prompts have no room for a query.
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
        """Return the token ids, or None if the title cannot be written (see `fault`)."""
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
        """Encode a window of a text, and the same with links; None if not even the mention fits."""

        def encoded(begin: int, end: int) -> EncodedExample:
            prompt = self._annotate.encode(self._tokenizer, linked.text[begin:end])
            # Behind a line end: some tokenizers put a blank before whatever begins a text.
            written = self._tokenizer.encode_text(linked.annotated(begin, end), after="\n")
            return EncodedExample(tuple(prompt), (*written, end_token))

        def fits(begin: int, end: int) -> bool:
            example = encoded(begin, end)
            room = self._limits.room(len(example.prompt_ids))
            is_short = room is None or len(example.title_ids) <= room
            return is_short and len(example.prompt_ids) <= self._max_prompt_tokens

        window = linked.window(fits)
        return None if window is None else encoded(*window)

    def _num_markup(self, template: PromptTemplate) -> int:
        if template not in self._markup:
            self._markup[template] = num_markup_tokens(template, self._tokenizer)
        return self._markup[template]

    def fault(self, row: Sequence[int] | None) -> str | None:
        """Return why a title's row can follow no prompt and is never trained on; None if it can."""
        if row is None:
            return "merging with the prompt"
        if self._tokenizer.unknown_id in row[:-1]:
            return "not spellable"  # and so in no index
        room = self._limits.room(1 + self._num_markup(self._plain))
        if room is not None and len(row) > room:
            return "longer than the model's positions"
        return None


# Turns examples into token ids; None if there is nothing to learn from.
Encode = Callable[[Example], EncodedExample | None]


class ExampleDataset(Dataset[EncodedExample]):
    """The first `length` examples of a run, read in order; `seed` decides about all of them.

    Blocks of several batches are generated together and sorted by prompt length, so that a batch is padded
    little; the batches of a block come in random order.
    """

    def __init__(
        self, generator: ExampleGenerator, encode: Encode, length: int, batch_size: int, seed: int
    ) -> None:
        self._generator = generator
        self._encode = encode
        self._length = length
        self._batch_size = batch_size
        self._seed = seed
        self._block: tuple[int, list[EncodedExample]] = (-1, [])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> EncodedExample:
        size = self._batch_size * BATCHES_PER_BLOCK
        block, offset = divmod(index, size)
        if self._block[0] != block:
            self._block = (block, self._generate(block, size))
        return self._block[1][offset]

    def timed_block(self, step: int, clock: Callable[[], float]) -> tuple[list[EncodedExample], float]:
        """Return the block of a step (from 0), and the seconds that it took to make; it is kept."""
        begun_s = clock()
        self[step * self._batch_size]
        return self._block[1], clock() - begun_s

    def _generate(self, block: int, size: int) -> list[EncodedExample]:
        random = Random(f"{self._seed}/{block}")
        examples: list[EncodedExample] = []
        failures = 0
        while len(examples) < size:
            example = self._generator.draw(block * size + len(examples), random)
            encoded = self._encode(example)
            if encoded is not None:
                examples.append(encoded)
                continue
            failures += 1
            if failures > 10 * size:
                told = f"hardly any title can be written in this rendering, {example.title!r} cannot"
                raise InputError("catalogue", told)
        examples.sort(key=lambda e: (len(e.prompt_ids), e.prompt_ids))
        batches = [examples[i : i + self._batch_size] for i in range(0, size, self._batch_size)]
        random.shuffle(batches)
        return [example for batch in batches for example in batch]


def causal_batch(pad_id: int, examples: Sequence[EncodedExample]) -> dict[str, Tensor]:
    """Return a batch for a decoder-only model: `left padding | prompt | title | right padding`.

    All titles start in the same column, so logits are needed for the last columns only. Shapes: input_ids,
    attention_mask and position_ids (B, T+L), labels (B, L) of the last L columns.
    """
    titles = [e.title_ids for e in examples]
    prompt_ids, prompt_mask = padded([e.prompt_ids for e in examples], pad_id, "left")
    title_ids, title_mask = padded(titles, pad_id)
    mask = torch.cat([prompt_mask, title_mask], dim=1)
    return {
        "input_ids": torch.cat([prompt_ids, title_ids], dim=1),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp_min(0),
        "labels": padded(titles, IGNORED_LABEL)[0],
    }


def seq2seq_batch(
    pad_id: int, decoder_prompt: tuple[int, ...], examples: Sequence[EncodedExample]
) -> dict[str, Tensor]:
    """Return a batch for an encoder-decoder model: the prompt is encoded, the title is written.

    The decoder reads `decoder_prompt`, the tokens that serving puts before every title
    (`decoding.model.architectures.decoder_prompt`, not empty), and then the title. Shapes: input_ids and
    attention_mask (B, T), decoder_input_ids (B, P + L - 1), labels (B, L) of its last L columns.
    """
    titles = [e.title_ids for e in examples]
    input_ids, mask = padded([e.prompt_ids for e in examples], pad_id)
    return {
        "input_ids": input_ids,
        "attention_mask": mask,
        "decoder_input_ids": padded([decoder_prompt + title[:-1] for title in titles], pad_id)[0],
        "labels": padded(titles, IGNORED_LABEL)[0],
    }


def limits_of_checkpoint(model: Any) -> Limits:
    """Return the limits of a `transformers.PreTrainedModel`, which is not changed.

    A ModelError says that serving could not decode with it, or that it does not say how a title begins.
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
    """Return the number of tokens of every prompt that are the template's own."""
    return len(template.encode(tokenizer, ""))


def check_markup(template: PromptTemplate, tokenizer: TextTokenizer, limit: int) -> None:
    """Raise an `InputError` unless prompts of up to `limit` tokens have room for a query."""
    markup = num_markup_tokens(template, tokenizer)
    if markup >= limit:
        raise InputError(
            "max_prompt_tokens",
            f"prompts may have {limit} tokens, but the template {template.name!r} alone has {markup}",
        )


def fit_prompt(template: PromptTemplate, tokenizer: TextTokenizer, text: str, limit: int | None) -> list[int]:
    """Return the prompt of a text; above `limit` tokens (None: no limit), the text loses its end.

    The template's own tokens behind the text stay, since the model reads from them that a title is due; they
    must leave room (`check_markup`).
    """
    ids = template.encode(tokenizer, text)
    if limit is None or len(ids) <= limit:
        return ids
    markup = template.encode(tokenizer, "")
    tail = 0
    while tail < len(markup) and markup[-1 - tail] == ids[-1 - tail]:
        tail += 1
    return [*ids[: limit - tail], *ids[len(ids) - tail :]]
