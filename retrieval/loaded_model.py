"""The model of a retriever: loads it, encodes prompts within its limits, and keeps shared prefixes of them.

Decoders make sessions of their own from the one they are given. `KvMeter` wraps them all, reads how much
key/value memory each uses, and keeps none alive; `ChainMeter` does so for answers that are written token by
token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor, equal

from genret.decoding.bounded_cache import BoundedCache
from genret.decoding.errors import DecodingError
from genret.decoding.language_model import (
    ChainSession,
    DecodeSession,
    KvUsage,
    LanguageModel,
    PromptPrefix,
    TreeWriter,
)
from genret.decoding.row_trees import NodeSpan, RowTrees
from genret.retrieval.arguments import check_count
from genret.retrieval.checkpoints import find_checkpoint, local_folder
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.prompts import SCHEMA_PLACE, CheckpointConfig, PromptTemplate
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import KvShare


def load_model(
    place: str | Path, device: str, dtype: str, num_threads: int | None, trust_remote_code: bool
) -> LanguageModel:
    """Load a checkpoint. See `Retriever.open` for the arguments.

    Raises:
        InputError: `num_threads` is below 1.
        ModelError: the checkpoint cannot be used.
        MissingExtraError: it needs a package that is not installed.
    """
    if num_threads is not None:
        check_count("num_threads", num_threads, 1)
    found = find_checkpoint(place)
    found.check_packages()
    from genret.decoding.model.hf_model import HFLanguageModel  # transformers takes seconds to import

    try:
        return HFLanguageModel.load(
            found.weights, device, dtype, trust_remote_code, num_threads, adapter=found.adapter
        )
    except DecodingError as error:
        raise ModelError(str(error)) from error


def load_base(
    place: str | Path, adapted: LanguageModel, config: CheckpointConfig, dtype: str, trust_remote_code: bool
) -> tuple[LanguageModel, CheckpointConfig]:
    """Load the base of an adapter without it; weights that the adapter left as they are take no memory again.

    `adapted` is the model with the adapter, `config` its config. Returns model and config of the base. Raises
    as `load_model` does.
    """
    weights = find_checkpoint(place).weights
    base = load_model(weights, str(adapted.device), dtype, None, trust_remote_code)
    own, known = getattr(base, "pretrained", None), getattr(adapted, "pretrained", None)
    if own is not None and known is not None:
        others = dict(known.named_parameters())
        for name, tensor in own.named_parameters():
            other = others.get(name)
            if other is not None and tensor.dtype == other.dtype and equal(tensor, other):
                tensor.data = other.data
    return base, config.of_base(local_folder(weights))


def load_draft(
    place: str | Path, tokenizer: TextTokenizer, model: LanguageModel, dtype: str, trust_remote_code: bool
) -> LanguageModel:
    """Load a draft model beside a model; ModelError unless it has the same tokenizer and logits."""
    if TextTokenizer.load(place).fingerprint != tokenizer.fingerprint:
        raise ModelError(f"{place}: a draft model must have the tokenizer of the model, {tokenizer.name}")
    draft = load_model(place, str(model.device), dtype, None, trust_remote_code)
    if draft.vocab_size != model.vocab_size:
        raise ModelError(
            f"{place}: a draft model must have the logits of the model, {model.vocab_size}; "
            f"it has {draft.vocab_size}"
        )
    return draft


_MAX_CHARACTER_BYTES = 4  # in UTF-8
_MOST_UNBOUNDED = 32_768  # tokens of a text where the architecture sets no bound
_FIRST_PART = 8192  # characters; tokenised in some milliseconds
_MOST_KEPT, _LONGEST_KEPT = 256, 2000  # prompts, characters of their queries


class PromptEncoder:
    """Encodes prompts for one model with logits for `vocab_size` tokens. Can be used from several threads.

    `max_tokens` are the longest prompt that leaves room for a title; None: no bound.
    """

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int, max_tokens: int | None) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._kept = lru_cache(_MOST_KEPT)(self._encoded)
        self._num_shared = lru_cache(_MOST_KEPT)(lambda template: len(template.shared_tokens(tokenizer)))

    def num_shared(self, template: PromptTemplate) -> int:
        """Return the number of leading tokens that all prompts of a template have in common."""
        return self._num_shared(template)

    def leaves_half(self, template: PromptTemplate) -> bool:
        """Whether the shared prefix of a template takes at most half of the model's positions."""
        try:
            self.check_length("schema", template.schema)
        except InputError:
            return False
        return self._max_tokens is None or 2 * self.num_shared(template) <= self._max_tokens

    def encode(self, template: PromptTemplate, query: str) -> list[int]:
        """Return the token ids of a query in a template.

        The last ones are kept: a server counts the tokens when a query comes, and needs them when its batch
        begins.

        Raises:
            InputError: there are none, too many, or one that the model does not know. Its field is "query",
                or "schema" where the schema in the prompt leaves no room for a query.
        """
        if len(query) > _LONGEST_KEPT or template.schema:  # a schema is as long as its author likes
            return self._encoded(template, query)
        return [*self._kept(template, query)]

    def _encoded(self, template: PromptTemplate, query: str) -> list[int]:
        self.check_length("schema", template.schema)
        self.check_length("query", query.lower() if template.lowercase else query)
        prompt = template.encode(self._tokenizer, query)
        if not prompt:
            raise InputError("query", "gives no tokens with this prompt template")
        if max(prompt) >= self._vocab_size:
            raise InputError(
                "query",
                f"holds token {max(prompt)}, which the model does not know "
                f"(it has {self._vocab_size} tokens, its tokenizer {self._tokenizer.vocab_size})",
            )
        if self._max_tokens is not None and len(prompt) > self._max_tokens:
            markup = len(template.encode(self._tokenizer, ""))
            if template.schema and markup >= self._max_tokens:
                raise InputError(
                    "schema",
                    f"too long for the prompt template {template.name!r}, which shows it: {markup} tokens, "
                    f"the model takes at most {self._max_tokens}; name a template without {SCHEMA_PLACE}, "
                    "such as json-brief",
                )
            raise InputError(
                "query",
                f"too long: the prompt has {len(prompt)} tokens ({markup} are the template's), "
                f"the model takes at most {self._max_tokens}",
            )
        return prompt

    def check_length(self, field: str, text: str) -> None:
        """Refuse a text that leaves no room for a title; see `check_length`."""
        check_length(field, text, self._tokenizer, self._max_tokens)


def check_length(field: str, text: str, tokenizer: TextTokenizer, max_tokens: int | None) -> None:
    """Refuse, by InputError, a text of too many tokens, after at most a part of it was tokenised.

    A megabyte takes about a second, in which Python runs nothing else. `max_tokens` None: the model has no
    bound, and a text may have 32,768 tokens.
    """
    most = _MOST_UNBOUNDED if max_tokens is None else max_tokens
    most_bytes = most * tokenizer.max_token_bytes
    if len(text) * _MAX_CHARACTER_BYTES > most_bytes and (size := len(text.encode())) > most_bytes:
        raise InputError(
            field,
            f"too long: it has {size} bytes; the model takes at most {most} tokens, "
            f"of at most {tokenizer.max_token_bytes} bytes each",
        )
    part = _FIRST_PART
    while part < len(text):
        # Where a text is cut its tokens may be shorter than they would be, but not all of them.
        if (found := len(tokenizer.encode_text(text[:part]))) > 2 * most:
            raise InputError(
                field,
                f"too long: its first {part} characters have {found} tokens, the model takes at most {most}",
            )
        part *= 2


# A prompt must leave room for the longest title, up to this many tokens: one monstrous title must not make
# every query "too long".
_MIN_ROOM = 64
DEFAULT_BATCH_SIZE = 32
DEFAULT_GRAMMAR_CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Positions of a model, None where the architecture sets no bound."""

    # Most tokens of prompt and title together; of the title alone for encoder-decoders
    positions: int | None = None
    # Most tokens of the prompt of an encoder-decoder; not used for others
    encoder_positions: int | None = None
    is_encoder_decoder: bool = False  # whether prompts go into an encoder

    @classmethod
    def of(cls, model: LanguageModel) -> Limits:
        """Return the limits of a model."""
        return cls(model.max_positions, model.max_prompt_tokens, model.is_encoder_decoder)

    def prompt_tokens(self, longest_title: int) -> int | None:
        """Return the length of the longest prompt before titles of up to `longest_title` tokens."""
        if self.is_encoder_decoder or self.positions is None:
            return self.encoder_positions
        return self.positions - min(longest_title, _MIN_ROOM, self.positions // 2)

    def room(self, prompt_tokens: int) -> int | None:
        """Return the number of tokens that may follow a prompt."""
        if self.positions is None:
            return None
        return self.positions - (0 if self.is_encoder_decoder else prompt_tokens)


@dataclass(slots=True)
class _Reading:
    """The last usage of a session, and the numbers of its queries in the batch."""

    queries: tuple[int, ...]
    usage: KvUsage


class KvMeter:
    """Reads the usage of a session, and of every session made from it.

    Attributes:
        session: The same session, metered, for the decoder.
    """

    def __init__(self, session: DecodeSession, num_queries: int) -> None:
        self._readings: list[_Reading] = []
        self.session: DecodeSession = _MeteredSession(session, tuple(range(num_queries)), self._readings)

    def share(self, query: int) -> KvShare:
        """Return the share of one query: in every session an equal part, as their caches are rectangles.

        The first session stays while the others run, and they run one after the other.
        """
        first = self._readings[0]
        mine = [reading for reading in self._readings if query in reading.queries]
        later = max((_part(r.usage.peak_bytes, r) for r in mine if r is not first), default=0)
        held = _part(first.usage.held_bytes, first)
        return KvShare(
            peak_bytes=max(_part(first.usage.peak_bytes, first), held + later),
            per_branch_bytes=max(_part(r.usage.per_branch_bytes, r) for r in mine),
            shared_prefix_bytes=max(r.usage.shared_bytes for r in mine),
            num_collections=sum(r.usage.num_collections for r in mine),
        )


def _part(num_bytes: int, reading: _Reading) -> int:
    return num_bytes // len(reading.queries)


class _MeteredSession:
    """A session whose usage is read after everything that changes it."""

    def __init__(self, session: DecodeSession, queries: tuple[int, ...], readings: list[_Reading]) -> None:
        self._session = session
        self.root_logits = session.root_logits
        self._readings = readings
        self._mine = _Reading(queries, session.usage)
        readings.append(self._mine)

    @property
    def usage(self) -> KvUsage:
        return self._session.usage

    def keep_levels(self) -> None:
        self._session.keep_levels()

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        logits = self._session.step(parents, token_ids, depth)
        self._mine.usage = self._session.usage
        return logits

    def tree_writer(self, trees: RowTrees) -> TreeWriter:
        return _MeteredWriter(self._session, self._session.tree_writer(trees), self._mine)

    def select(self, queries: Sequence[int], branches: bool = False) -> DecodeSession:
        numbers = tuple(self._mine.queries[query] for query in queries)
        return _MeteredSession(self._session.select(queries, branches), numbers, self._readings)


class _MeteredWriter:
    """A writer whose session's usage is read after every forward."""

    def __init__(self, session: DecodeSession, writer: TreeWriter, reading: _Reading) -> None:
        self._session, self._writer, self._mine = session, writer, reading

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        logits = self._writer.write(spans)
        self._mine.usage = self._session.usage
        return logits


class ChainMeter:
    """A model that measures its first pass over the prompts (`decoding.language_model`).

    Attributes:
        prefill_ms: Wall time of the prompts, milliseconds; on a GPU until the work was handed over.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.vocab_size = model.vocab_size
        self.device = model.device
        self.max_positions = model.max_positions
        self.max_prompt_tokens = model.max_prompt_tokens
        self.is_encoder_decoder = model.is_encoder_decoder
        self.prefill = model.prefill  # not metered
        self.share_prefix = model.share_prefix
        self.prefill_ms = 0.0
        self._model = model
        self._session: ChainSession | None = None
        self._num_queries = 1

    def prefill_chains(
        self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
    ) -> ChainSession:
        """Run prompts as the model does, metered."""
        begun = time.perf_counter()
        session = self._model.prefill_chains(prompts, prefix)
        self.prefill_ms += (time.perf_counter() - begun) * 1e3
        self._session, self._num_queries = session, len(prompts)
        return session

    def share(self) -> KvShare:
        """Return the share of one query of the batch: an equal part."""
        if self._session is None:
            return KvShare()
        usage = self._session.usage
        return KvShare(
            peak_bytes=usage.peak_bytes // self._num_queries,
            per_branch_bytes=usage.per_branch_bytes // self._num_queries,
            shared_prefix_bytes=usage.shared_bytes,
            num_collections=usage.num_collections,
        )


DEFAULT_PREFIX_BYTES = 512 * 2**20
# Prompts with different beginnings do not share a forward, and a shared one is a segment of its own in every
# layer's attention, in every step: a few tokens are cheaper to run again. Roughly, on one CPU thread, with
# models of 5 and 25 M parameters and 12 tokens of query: 8 shared tokens take a lone prompt's prefill to 0.9
# of its time, 16 to 0.8, 64 to 0.3 or 0.5; that of eight prompts to 0.7, 0.5 or 0.6, and 0.3.
MIN_PREFIX_TOKENS = 16

_Key = tuple[int, ...]


class PrefixStore:
    """The shared prefixes of one model last used, up to a number of bytes of key/value memory.

    The last one is kept whatever its size. Prefixes in use stay alive with the sessions that use them. Safe
    to use from several threads; of those that miss the same prefix at once, one runs it and the others wait.

    Raises:
        InputError: the bound is negative or no integer.
    """

    def __init__(self, model: LanguageModel, max_bytes: int = DEFAULT_PREFIX_BYTES) -> None:
        check_count("prefix_bytes", max_bytes)
        self._model = model
        # None: cannot be shared
        self._held: BoundedCache[_Key, PromptPrefix | None] = BoundedCache(
            max_bytes,
            lambda key, prefix: 0 if prefix is None else prefix.kv_bytes,
            max_value_size=math.inf,
            single_flight=True,
        )

    @property
    def num_bytes(self) -> int:
        """Key/value memory of the prefixes held."""
        return self._held.size

    def __len__(self) -> int:
        return len(self._held)

    def get(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """Return the prefix of these tokens, run if it is not held; None if too short or not to be shared."""
        key = tuple(token_ids)
        if len(key) < MIN_PREFIX_TOKENS:
            return None
        return self._held.get_or_make(key, lambda: self._model.share_prefix(key))

    def before(self, prompt: Sequence[int], num_shared: int) -> PromptPrefix | None:
        """Return the shared prefix of a prompt, of `num_shared` tokens; at least one token follows it."""
        return None if num_shared >= len(prompt) else self.get(prompt[:num_shared])

    def grouped(
        self, jobs: Sequence[Any], kinds: Sequence[Hashable]
    ) -> list[tuple[PromptPrefix | None, list[int]]]:
        """Return the places of jobs of one kind that share a prefix, with it, in the order of the first."""
        groups: dict[Hashable, tuple[PromptPrefix | None, list[int]]] = {}
        for place, (job, kind) in enumerate(zip(jobs, kinds, strict=True)):
            prefix = self.before(job.prompt, job.num_shared)
            shared = None if prefix is None else prefix.token_ids
            groups.setdefault((kind, shared), (prefix, []))[1].append(place)
        return list(groups.values())

    def clear(self) -> None:
        """Drop everything held."""
        self._held.clear()
