"""Checks that index, model and prompts fit together; tokenizers are compared by `Index.check_tokenizer`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from genret.retrieval.checkpoints import DEFAULT_MODEL_VARIABLE
from genret.retrieval.defaults import default_model, missing_weights, small_model_dir
from genret.retrieval.errors import IndexMismatchError, InputError, ModelError
from genret.retrieval.index.reader import Index
from genret.retrieval.prompts import PLAIN, CheckpointConfig, PromptTemplate
from genret.retrieval.text import Rendering, TextTokenizer

# Titles that tell two renderings apart: a word, a number, a quote, brackets, no Latin letters.
PROBE_TITLES = ("Nile", "1984 (novel)", '"Heroes"', "Åland", "Νείλος", "a")


def default_model_of(index: Index) -> str | Path:
    """Return the default model of an index: the shipped one that it was built for.

    Raises:
        IndexMismatchError: it was built for another than the small one, which is all there is here.
        ModelError: none was shipped.
    """
    if os.environ.get(DEFAULT_MODEL_VARIABLE):
        return default_model()
    small = TextTokenizer.load(small_model_dir())
    if index.manifest.tokenizer.fingerprint == small.fingerprint:
        return Path(small.source)
    if (missing := missing_weights()) is not None:
        built = index.manifest.tokenizer.name
        raise IndexMismatchError(
            f"{index.path}: no model is named, and the small one, which is all there is here, has other "
            f"tokens than the index, which was built with {built!r}; name that model, or, if it is the "
            f"default one, install its weights: {missing}"
        )
    return default_model()


def tell_of_default(error: BaseException) -> None:
    """Raise a mismatch of a default model again, with the variable that named the model."""
    if isinstance(error, IndexMismatchError) and os.environ.get(DEFAULT_MODEL_VARIABLE):
        message = f"the model named by ${DEFAULT_MODEL_VARIABLE} does not fit (unset it?): {error}"
        raise IndexMismatchError(message) from error


def check_default_prompt(index: Index, tokenizer: TextTokenizer, config: CheckpointConfig) -> None:
    """Raise IndexMismatchError if an index does not fit the default prompt; the text says what mends it."""
    try:
        check_prompt(index, tokenizer, config, config.prompt(None))
    except InputError as error:
        raise IndexMismatchError(error.message) from None


def check_prompt(
    index: Index, tokenizer: TextTokenizer, config: CheckpointConfig, template: PromptTemplate
) -> None:
    """Raise InputError for "prompt" if titles behind a prompt are other tokens than in the index."""
    told = mismatch(index.rendering, index.end_token_id, tokenizer, config, template, tokenizer.name)
    if told is not None:
        raise InputError("prompt", f"{index.path}: {told}; {_mend(index, tokenizer, config)}")


def mismatch(
    built: Rendering,
    end_token_id: int,
    tokenizer: TextTokenizer,
    config: CheckpointConfig,
    template: PromptTemplate,
    model: str,
) -> str | None:
    """Return how titles of an index are other tokens than a model expects behind a prompt, or None.

    A checkpoint's rendering holds behind all its prompts, whatever they say themselves. Renderings that are
    written in other ways may be the same tokens, so titles are tokenised in both.

    Args:
        built: Rendering of the index, whose rows `end_token_id` closes.
        end_token_id: Id of the index's end token.
        tokenizer: Tokenizer of index and model.
        config: Prompts of the model.
        template: One of them; without a rendering of its own it fits every index.
        model: Name of the model, for the text.

    Raises InputError if the model was taught an end token that the vocabulary lacks.
    """
    taught, own = config.rendering, template.rendering
    if taught is not None:
        own = replace(taught, end_token=tokenizer.token_name(tokenizer.end_token_id(taught)))
    if own is None or _same_tokens(built, end_token_id, tokenizer, own):
        return None
    expects = f"the prompt {template.name!r} of {model} expects" if taught is None else f"{model} was taught"
    end = "" if own.end_token is None else f" and {own.end_token!r}"
    return (
        f"titles stand behind a prompt as {_title(built)!r} and {tokenizer.token_name(end_token_id)!r}, "
        f"but {expects} {_title(own)!r}{end}"
    )


def _same_tokens(built: Rendering, end_token_id: int, tokenizer: TextTokenizer, own: Rendering) -> bool:
    try:
        if own.end_token is not None and tokenizer.end_token_id(own) != end_token_id:
            return False
    except InputError:  # the vocabulary has no line break
        return False
    end = tokenizer.token_name(end_token_id)
    ours, theirs = (
        tokenizer.encode_titles(PROBE_TITLES, replace(rendering, end_token=end)) for rendering in (own, built)
    )
    return ours == theirs


def check_templates(tokenizer: TextTokenizer, config: CheckpointConfig, vocab_size: int) -> None:
    """Raise ModelError if a model lacks the special tokens of its own templates."""
    for name in (config.default_prompt, config.mention_prompt):
        template = config.prompt(name)
        ids = [*tokenizer.encode_markup(template.prefix), *tokenizer.encode_markup(template.suffix)]
        if ids and max(ids) >= vocab_size:
            raise ModelError(
                f"{tokenizer.name}: the prompt template {name!r} needs token {max(ids)}, but the model "
                f"knows only tokens below {vocab_size}; its embeddings do not fit its tokenizer"
            )


def _title(rendering: Rendering) -> str:
    return f"{rendering.context}{rendering.prefix}TITLE{rendering.suffix}"


def _mend(index: Index, tokenizer: TextTokenizer, config: CheckpointConfig) -> str:
    """Return advice: another prompt that fits, where one is known, or another index."""
    rebuild = f"rebuild the index without rendering options: build-index … --tokenizer {tokenizer.name}"
    if config.default_prompt != CheckpointConfig().default_prompt:
        rebuild += f" --prompt {config.default_prompt}"
    # The plain one last: it fits whatever ends a title, and says least to a model.
    templates = sorted(config.prompts.items(), key=lambda named: named[0] == PLAIN.name)
    for name, template in templates:
        told = template.rendering is not None and template.mention_format == "{mention}"
        if told and mismatch(index.rendering, index.end_token_id, tokenizer, config, template, "") is None:
            return f"name a prompt that fits, as with --prompt {name}, or {rebuild}"
    return rebuild
