"""Loads the model of a checkpoint behind the decoding protocol, and encodes prompts within its limits."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from genret.decoding.errors import DecodingError
from genret.decoding.language_model import LanguageModel
from genret.retrieval.checkpoints import find_checkpoint
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.prompts import SCHEMA_PLACE, PromptTemplate
from genret.retrieval.text import TextTokenizer


def load_model(
    place: str | Path, device: str, dtype: str, num_threads: int | None, trust_remote_code: bool
) -> LanguageModel:
    """Load a checkpoint. See `Retriever.open` for the arguments.

    Raises:
        InputError: `num_threads` is below 1.
        ModelError: the checkpoint cannot be used.
        MissingExtraError: it needs a package that is not installed.
    """
    if num_threads is not None and num_threads < 1:
        raise InputError("num_threads", f"must be at least 1, got {num_threads}")
    found = find_checkpoint(place)
    found.check_packages()
    from genret.decoding.model.hf_model import HFLanguageModel  # transformers takes seconds to import

    try:
        return HFLanguageModel.load(
            found.weights, device, dtype, trust_remote_code, num_threads, adapter=found.adapter
        )
    except DecodingError as error:
        raise ModelError(str(error)) from error


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
_MOST_KEPT, _LONGEST_KEPT = 256, 2000  # prompts, characters of their queries


class PromptEncoder:
    """Encodes prompts for one model. Can be used from several threads.

    Args:
        tokenizer: The model's tokenizer.
        vocab_size: Width of the model's logits.
        max_tokens: Longest prompt that leaves room for a title; None: no bound.
    """

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int, max_tokens: int | None) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._num_shared: dict[PromptTemplate, int] = {}
        self._lock = threading.Lock()
        self._kept: dict[tuple[PromptTemplate, str], list[int]] = {}

    def num_shared(self, template: PromptTemplate) -> int:
        """Return the number of leading tokens that all prompts of a template have in common."""
        if template not in self._num_shared:
            if len(self._num_shared) >= _MOST_KEPT:  # each schema makes a template of its own
                self._num_shared.clear()
            self._num_shared[template] = len(template.shared_tokens(self._tokenizer))
        return self._num_shared[template]

    def leaves_half(self, template: PromptTemplate) -> bool:
        """Whether the shared prefix of a template takes at most half of the model's positions."""
        return self._max_tokens is None or 2 * self.num_shared(template) <= self._max_tokens

    def encode(self, template: PromptTemplate, query: str) -> list[int]:
        """Return the token ids of a query in a template.

        Raises:
            InputError: there are none, too many, or one that the model does not know. Its field is "query",
                or "schema" where the schema in the prompt leaves no room for a query.
        """
        with self._lock:
            kept = self._kept.pop((template, query), None) if self._kept else None
        if kept is not None:
            return kept
        self._check_bytes(query.lower() if template.lowercase else query)
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

    def _check_bytes(self, text: str) -> None:
        """Refuse a text that no tokens could make fit, before it is tokenised: that takes 3 s for each MB."""
        if self._max_tokens is None:
            return
        longest = self._tokenizer.max_token_bytes
        most = self._max_tokens * longest
        if len(text) * _MAX_CHARACTER_BYTES > most and (size := len(text.encode())) > most:
            raise InputError(
                "query",
                f"too long: it has {size} bytes; the model takes at most {self._max_tokens} tokens, "
                f"of at most {longest} bytes each",
            )

    def keep(self, template: PromptTemplate, query: str, prompt: list[int]) -> None:
        """Keep a prompt for the next `encode` of the same query, to which it is handed.

        A server counts the tokens when a query comes, and needs them when its batch begins. The oldest prompt
        makes room: calls that were refused never ask for theirs.
        """
        if len(query) > _LONGEST_KEPT:
            return
        with self._lock:
            self._kept[template, query] = prompt
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]


# A prompt must leave room for the longest title, up to this many tokens: one monstrous title must not make
# every query "too long".
_MIN_ROOM = 64
DEFAULT_BATCH_SIZE = 32
DEFAULT_GRAMMAR_CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Positions of a model, None where the architecture sets no bound.

    Attributes:
        positions: Most tokens of prompt and title together; of the title alone for encoder-decoders.
        encoder_positions: Most tokens of the prompt of an encoder-decoder; not used for others.
        is_encoder_decoder: Whether prompts go into an encoder.
    """

    positions: int | None = None
    encoder_positions: int | None = None
    is_encoder_decoder: bool = False

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
