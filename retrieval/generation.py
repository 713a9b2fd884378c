"""Writes texts behind prompts by beam search in token trees: free ones, or those of a constraint."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genret.decoding.errors import DecodingError
from genret.decoding.params import MAX_BEAM_SIZE, MAX_K, MAX_LENGTH_PENALTY, MAX_TOKENS, BeamParams
from genret.retrieval.arguments import check_keywords, check_text, integer, number
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.loaded_model import DEFAULT_BATCH_SIZE, MIN_PREFIX_TOKENS, Limits, load_model
from genret.retrieval.text import Rendering, TextTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from genret.decoding.beam_search import BeamResult
    from genret.decoding.constraints import Constraint
    from genret.decoding.language_model import LanguageModel, PromptPrefix

DEFAULT_MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """One text that was written behind a prompt.

    Attributes:
        text: Its text, without the end token and other special tokens.
        logprob: Log-probability of its tokens behind the prompt, natural logarithm.
        score: Number that orders the list: logprob / length ** length_penalty.
        token_ids: Its tokens, the end token included where it came.
        row: Rank of the row in a trie; -1 for free text.
    """

    text: str
    logprob: float
    score: float
    token_ids: tuple[int, ...]
    row: int = -1


@check_keywords
def generate(
    model: str | Path | PreTrainedModel | LanguageModel,
    prompts: str | Iterable[str] | Iterable[Sequence[int]],
    k: int = 1,
    *,
    tokenizer: str | Path | TextTokenizer | PreTrainedTokenizerFast | None = None,
    constraint: Constraint | None = None,
    beam_size: int | None = None,
    max_tokens: int | None = None,
    min_tokens: int = 0,
    length_penalty: float = 0.0,
    end_token: str | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    device: str = "auto",
    dtype: str = "auto",
) -> list[list[GeneratedText]]:
    """Write the k likeliest texts behind every prompt that beam search finds, best first.

    All beams of a prompt are branches of one token tree: it is run once, and so is what all prompts begin
    with.

    Args:
        model: Checkpoint as any `--model` takes it, or a loaded model: one of transformers, or of a
            `Retriever` (`retriever.model`).
        prompts: A prompt or several. Special tokens in a text are special, and those that the tokenizer puts
            before one stand there. A list of token ids is taken as it is.
        k: Texts per prompt, at most.
        tokenizer: Tokenizer of a loaded model: a checkpoint, or a fast one of transformers; None: that of the
            checkpoint.
        constraint: Sequences that may be written behind a prompt, on the model's device: the trie of
            `title_trie`, a grammar, or one of your own; None: any text.
        beam_size: Live beams per step; None: the larger of k and 10.
        max_tokens: Most tokens of a text, the end token included; a free text may also end there without one.
            None: 64, or what the constraint needs.
        min_tokens: Least tokens of a free text before the end token.
        length_penalty: Texts are ranked by logprob / length ** length_penalty. `generate` of transformers has
            1.0 where nothing is said.
        end_token: Token that ends a free text, or text that is one (a line break); None: the tokenizer's.
        batch_size: Most prompts that are decoded together; fewer where their logits would take more than 256
            MiB.
        device: "auto", "cpu", "cuda", "cuda:1", ..., for a model that is loaded here; so is `dtype`.
        dtype: "auto", "float32", "bfloat16", "float16" or "float64".

    Returns:
        One list per prompt, in their order. Fewer than k texts where the constraint allows no more.

    Raises:
        InputError: an argument is of the wrong kind or out of range, or a prompt is empty, too long, or holds
            a token that the model does not know; names it.
        GenretError: the model or its tokenizer cannot be loaded or used.
    """
    integer("k", k, 1, MAX_K)
    if beam_size is not None:
        integer("beam_size", beam_size, 1, MAX_BEAM_SIZE)
    integer("batch_size", batch_size, 1, 2**31 - 1)
    number("length_penalty", length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
    if max_tokens is not None:
        integer("max_tokens", max_tokens, 1, MAX_TOKENS)
    if constraint is not None and (min_tokens or end_token is not None):
        raise InputError("constraint", "says itself where texts end: no min_tokens or end_token beside it")
    voice = _tokenizer(model, tokenizer)
    try:
        writer = _Writer(_loaded(model, device, dtype), voice, BeamParams(k, beam_size, length_penalty))
        if constraint is None:
            most = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
            integer("min_tokens", min_tokens, 0, most)
            constraint = writer.free_text(most, min_tokens, end_token)
            return writer.write(prompts, constraint, most, batch_size, is_free=True)
        return writer.write(prompts, constraint, max_tokens or constraint.max_depth, batch_size)
    except DecodingError as error:
        raise ModelError(str(error)) from error


def _loaded(model: Any, device: str, dtype: str) -> LanguageModel:
    if isinstance(model, str | os.PathLike):
        return load_model(os.fspath(model), device, dtype, None, False)
    if hasattr(model, "prefill"):
        known: LanguageModel = model
        return known
    from transformers import PreTrainedModel  # takes seconds

    from genret.decoding.model.hf_model import HFLanguageModel

    if not isinstance(model, PreTrainedModel):
        raise InputError("model", f"must be a checkpoint or a loaded model, got {type(model).__name__}")
    return HFLanguageModel(model)


def _tokenizer(model: Any, tokenizer: Any) -> TextTokenizer:
    if tokenizer is None and isinstance(model, str | os.PathLike):
        tokenizer = model
    if isinstance(tokenizer, str | os.PathLike):
        return TextTokenizer.load(os.fspath(tokenizer))
    if hasattr(tokenizer, "backend_tokenizer"):
        return TextTokenizer(tokenizer.backend_tokenizer, tokenizer.eos_token, str(tokenizer.name_or_path))
    if isinstance(tokenizer, TextTokenizer):
        return tokenizer
    got = type(tokenizer).__name__
    raise InputError(
        "tokenizer", f"a loaded model needs its tokenizer: a checkpoint or a fast one; got {got}"
    )


class _Writer:
    """A model with its tokenizer, and what is wanted of every prompt."""

    def __init__(self, model: LanguageModel, tokenizer: TextTokenizer, params: BeamParams) -> None:
        self._model, self._tokenizer, self._params = model, tokenizer, params
        self._limits = Limits.of(model)

    def free_text(self, max_tokens: int, min_tokens: int, end_token: str | None) -> Constraint:
        from genret.decoding.free_text import FreeText  # torch takes a second to import

        end = self._tokenizer.end_token_id(Rendering(end_token=end_token))
        return FreeText(self._model.vocab_size, max_tokens, end, min_tokens)

    def write(
        self, prompts: Any, constraint: Constraint, max_tokens: int, batch_size: int, is_free: bool = False
    ) -> list[list[GeneratedText]]:
        from genret.decoding.beam_search import beam_search
        from genret.decoding.row_scores import MAX_LOGITS_BYTES

        asked = [prompts] if isinstance(prompts, str) else prompts
        if not isinstance(asked, Iterable):
            raise InputError("prompts", f"must be text or a list, got {type(prompts).__name__}")
        encoded = [self._encoded(f"prompts[{i}]", prompt) for i, prompt in enumerate(asked)]
        rooms = [self._room(f"prompts[{i}]", ids, max_tokens, is_free) for i, ids in enumerate(encoded)]
        prefix = self._shared(encoded)
        size = min(batch_size, max(1, MAX_LOGITS_BYTES // (self._params.width * self._model.vocab_size * 4)))
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))  # little of a batch is padding
        texts: dict[int, list[GeneratedText]] = {}
        for at in range(0, len(order), size):
            batch = order[at : at + size]
            session = self._model.prefill([encoded[i] for i in batch], prefix)
            params = [self._params] * len(batch)
            results: Any = beam_search(session, constraint, params, room=[rooms[i] for i in batch])
            texts.update(zip(batch, map(self._texts, results), strict=True))
        return [texts[i] for i in range(len(encoded))]

    def _shared(self, prompts: list[list[int]]) -> PromptPrefix | None:
        """Return what all prompts begin with, run; None where nothing is gained by it."""
        if len(prompts) < 2:
            return None
        first, last = min(prompts), max(prompts)
        pairs = enumerate(zip(first[:-1], last, strict=False))
        num = next((i for i, (one, other) in pairs if one != other), len(first) - 1)
        return self._model.share_prefix(first[:num]) if num >= MIN_PREFIX_TOKENS else None

    def _texts(self, result: BeamResult) -> list[GeneratedText]:
        penalty = self._params.length_penalty
        return [
            GeneratedText(
                self._tokenizer.decode(found.token_ids),
                found.logprob,
                found.score(penalty),
                found.token_ids,
                found.row,
            )
            for found in result.hypotheses
        ]

    def _encoded(self, name: str, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            check_text(name, prompt)
            ids = self._tokenizer.encode_markup(prompt)
            before, behind = self._tokenizer.frame
            if ids[: len(before)] != before:
                ids = [*before, *ids]
            if self._model.is_encoder_decoder:
                ids += behind
        elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
            ids = [integer(f"{name}[{i}]", token, 0, 2**31 - 1) for i, token in enumerate(prompt)]
        else:
            raise InputError(name, f"must be text or a list of token ids, got {type(prompt).__name__}")
        if not ids:
            raise InputError(name, "must not be empty")
        if max(ids) >= self._model.vocab_size:
            raise InputError(
                name, f"holds token {max(ids)}; the model knows {self._model.vocab_size} of them"
            )
        return ids

    def _room(self, name: str, ids: list[int], max_tokens: int, is_free: bool) -> int:
        most = self._model.max_prompt_tokens
        room = self._limits.room(len(ids))
        needed = max_tokens if is_free else 1
        if (most is not None and len(ids) > most) or (room is not None and room < needed):
            raise InputError(
                name, f"too long: {len(ids)} tokens, and {needed} more, do not fit the model's positions"
            )
        return max_tokens if room is None else min(room, max_tokens)
