"""Returns the title trie of an index, for users who call a model themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from genret.decoding.errors import DecodingError
from genret.retrieval.arguments import check_keywords, integer
from genret.retrieval.compatibility import check_default_prompt
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.index.reader import Index
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer

if TYPE_CHECKING:
    import torch

    from genret.decoding.trie.title_trie import TitleTrie


@check_keywords
def title_trie(
    index: Index | str | Path,
    tokenizer: TextTokenizer | str | Path,
    *,
    vocab_size: int | None = None,
    device: torch.device | str | None = None,
) -> TitleTrie:
    """Return the trie of an index, as the constraint of a model with a given tokenizer.

    Args:
        index: An open index or its directory. The trie stays valid when the index is closed.
        tokenizer: Checkpoint directory, tokenizer.json or hub id of the model that is to write titles, or a
            `TextTokenizer`.
        vocab_size: Width of the model's logits; None: the tokenizer's number of tokens.
        device: Device of the trie: "cpu", "cuda", "cuda:1", ...; None: the CPU, also for a model elsewhere.

    Raises:
        InputError: an argument is of the wrong kind, or `vocab_size` is below 1.
        IndexMismatchError: the index was built for another tokenizer, holds tokens the model does not have,
            or renders titles otherwise than the checkpoint was taught.
        GenretError: index or tokenizer cannot be read, or there is no such device here.
    """
    if vocab_size is not None:
        vocab_size = integer("vocab_size", vocab_size, 1, 2**31 - 1)
    if not isinstance(tokenizer, TextTokenizer | str | Path):
        got = type(tokenizer).__name__
        raise InputError("tokenizer", f"must be a checkpoint directory, tokenizer.json or hub id, got {got}")
    if not isinstance(index, Index):
        with Index.open(index) as opened:
            return title_trie(opened, tokenizer, vocab_size=vocab_size, device=device)
    if not isinstance(tokenizer, TextTokenizer):
        tokenizer = TextTokenizer.load(tokenizer)
    index.check_tokenizer(tokenizer, vocab_size)
    if (config := CheckpointConfig.load(Path(tokenizer.source))).rendering is not None:
        check_default_prompt(index, tokenizer, config)
    from genret.decoding.trie.title_trie import TitleTrie  # torch takes a second to import

    # A model may be narrower than its tokenizer, where no title needs the tokens it lacks.
    return TitleTrie(index.trie_arrays(), vocab_size or index.vocab_size, _checked(device))


def _checked(device: torch.device | str | None) -> torch.device | None:
    if device is None:
        return None
    from genret.decoding.model.model_loading import resolve_device  # transformers takes seconds to import

    try:
        return resolve_device(device)
    except DecodingError as error:
        raise ModelError(str(error)) from error
