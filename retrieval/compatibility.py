"""Whether index, model and prompts fit together; tokenizers are compared by `Index.check_tokenizer`."""

from __future__ import annotations

from retrieval.errors import IndexMismatchError, ModelError
from retrieval.index.reader import Index
from retrieval.prompts import CheckpointConfig
from retrieval.text import TextTokenizer


def check_rendering(index: Index, tokenizer: TextTokenizer, config: CheckpointConfig) -> None:
    """Refuse an index whose titles stand after the prompt otherwise than the model was taught.

    Raises:
        IndexMismatchError: the text names what differs.
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
            f"rebuild the index without rendering options: build-index … --tokenizer {tokenizer.source}"
        )


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
