"""Whether index, model and prompts fit together; tokenizers are compared by `Index.check_tokenizer`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from retrieval.defaults import DEFAULT_MODEL_VARIABLE, default_model, missing_weights, small_model_dir
from retrieval.errors import IndexMismatchError, InputError, ModelError
from retrieval.index.reader import Index
from retrieval.prompts import CheckpointConfig, PromptTemplate
from retrieval.text import Rendering, TextTokenizer

# Written both ways where two renderings are compared: a word, a number, a quote, brackets, no Latin letters.
PROBE_TITLES = ("Nile", "1984 (novel)", '"Heroes"', "Åland", "Νείλος", "a")


def default_model_of(index: Index) -> str | Path:
    """Return the model that is meant where none is named: the shipped one that an index was built for.

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


def check_rendering(index: Index, tokenizer: TextTokenizer, config: CheckpointConfig) -> None:
    """Refuse an index whose titles stand after the prompt otherwise than the model was taught.

    Raises:
        IndexMismatchError: the text names what differs, and the command that mends it.
    """
    taught, built = config.rendering, index.rendering
    if taught is None:
        return
    differences = [
        f"{name} {getattr(built, name)!r} instead of {getattr(taught, name)!r}"
        for name in ("context", "prefix", "suffix")
        if getattr(built, name) != getattr(taught, name)
    ]
    end = tokenizer.end_token_id(taught)
    if end != index.end_token_id:
        differences.append(f"end token {index.end_token_id} instead of {end}")
    if differences:
        raise IndexMismatchError(
            f"{index.path}: titles are not rendered as the model was taught: {', '.join(differences)}; "
            f"{_mend(index, tokenizer, config)}"
        )


def check_default_prompt(index: Index, tokenizer: TextTokenizer, config: CheckpointConfig) -> None:
    """Refuse an index that does not go with the default prompt.

    Raises:
        IndexMismatchError: the text names both sides, and what mends it.
    """
    check_rendering(index, tokenizer, config)
    try:
        check_prompt(index, tokenizer, config, config.prompt(None))
    except InputError as error:
        raise IndexMismatchError(error.message) from None


def check_prompt(
    index: Index, tokenizer: TextTokenizer, config: CheckpointConfig, template: PromptTemplate
) -> None:
    """Refuse a prompt behind which titles stand otherwise than in the index.

    What a checkpoint says of titles holds behind all its prompts, whatever they say themselves.

    Raises:
        InputError: its field is "prompt"; the text names both sides.
    """
    if config.rendering is None and not fits(index.rendering, index.end_token_id, tokenizer, template):
        raise InputError("prompt", _mismatch(index, tokenizer, config, template))


def fits(built: Rendering, end_token_id: int, tokenizer: TextTokenizer, template: PromptTemplate) -> bool:
    """Whether titles of an index are the tokens that a template expects behind it.

    Renderings that are written in other ways may be the same tokens, so titles are tokenised in both.

    Args:
        built: Rendering of the index.
        end_token_id: Closes its rows.
        tokenizer: Of index and model.
        template: One without a rendering of its own fits every index.
    """
    own = template.rendering
    if own is None:
        return True
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
    """Refuse a model that lacks the special tokens of its own templates.

    Raises:
        ModelError: a template's token is not below `vocab_size`.
    """
    for name in (config.default_prompt, config.mention_prompt):
        template = config.prompt(name)
        ids = [*tokenizer.encode_markup(template.prefix), *tokenizer.encode_markup(template.suffix)]
        if ids and max(ids) >= vocab_size:
            raise ModelError(
                f"{tokenizer.source}: the prompt template {name!r} needs token {max(ids)}, but the model "
                f"knows only tokens below {vocab_size}; its embeddings do not fit its tokenizer"
            )


def _mismatch(
    index: Index, tokenizer: TextTokenizer, config: CheckpointConfig, template: PromptTemplate
) -> str:
    own = template.rendering or Rendering()
    end = "" if own.end_token is None else f" and {own.end_token!r}"
    return (
        f"{index.path}: titles stand behind a prompt as {_title(index.rendering)!r} and "
        f"{tokenizer.token_name(index.end_token_id)!r}, but the prompt {template.name!r} of "
        f"{tokenizer.source} expects {_title(own)!r}{end}; {_mend(index, tokenizer, config)}"
    )


def _title(rendering: Rendering) -> str:
    return f"{rendering.context}{rendering.prefix}TITLE{rendering.suffix}"


def _mend(index: Index, tokenizer: TextTokenizer, config: CheckpointConfig) -> str:
    """Return what makes index and prompt fit: another prompt, where one is known, or another index."""
    rebuild = f"rebuild the index without rendering options: build-index … --tokenizer {tokenizer.source}"
    if config.default_prompt != CheckpointConfig().default_prompt:
        rebuild += f" --prompt {config.default_prompt}"
    for name, template in config.prompts.items():
        told = template.rendering is not None and template.mention_format == "{mention}"
        if told and fits(index.rendering, index.end_token_id, tokenizer, template):
            return f"name a prompt that fits, as with --prompt {name}, or {rebuild}"
    return rebuild
