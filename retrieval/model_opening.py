"""The model of a checkpoint, loaded behind the decoding protocol."""

from __future__ import annotations

from pathlib import Path

from decoding.errors import DecodingError
from decoding.language_model import LanguageModel
from retrieval.checkpoints import find_checkpoint
from retrieval.errors import InputError, ModelError
from retrieval.text import TextTokenizer


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
    from decoding.hf_model import HFLanguageModel  # transformers takes seconds to import

    try:
        return HFLanguageModel.load(
            found.weights, device, dtype, trust_remote_code, num_threads, adapter=found.adapter
        )
    except DecodingError as error:
        raise ModelError(str(error)) from error


def load_draft(
    place: str | Path, tokenizer: TextTokenizer, model: LanguageModel, dtype: str, trust_remote_code: bool
) -> LanguageModel:
    """Load the checkpoint that drafts for a model, beside it.

    Args:
        place: Checkpoint directory or hub id.
        tokenizer: The model's.
        model: The model it drafts for.
        dtype: As `Retriever.open` takes it.
        trust_remote_code: Run model code that a hub checkpoint brings along.

    Raises:
        ModelError: the checkpoint cannot be used, or has another tokenizer.
    """
    if TextTokenizer.load(place).fingerprint != tokenizer.fingerprint:
        raise ModelError(f"{place}: a draft model must have the tokenizer of the model, {tokenizer.source}")
    draft = load_model(place, str(model.device), dtype, None, trust_remote_code)
    if draft.vocab_size != model.vocab_size:
        raise ModelError(
            f"{place}: a draft model must have the logits of the model, {model.vocab_size}; "
            f"it has {draft.vocab_size}"
        )
    return draft
