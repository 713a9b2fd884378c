"""The model of a checkpoint, loaded behind the decoding protocol."""

from __future__ import annotations

from pathlib import Path

from decoding.errors import DecodingError
from decoding.language_model import LanguageModel
from retrieval.errors import InputError, ModelError


def load_model(
    place: str | Path, device: str, dtype: str, num_threads: int | None, trust_remote_code: bool
) -> LanguageModel:
    """Load a checkpoint. See `Retriever.open` for the arguments.

    Raises:
        InputError: `num_threads` is below 1.
        ModelError: the checkpoint cannot be used.
    """
    if num_threads is not None and num_threads < 1:
        raise InputError("num_threads", f"must be at least 1, got {num_threads}")
    from decoding.hf_model import HFLanguageModel  # transformers takes seconds to import

    try:
        return HFLanguageModel.load(place, device, dtype, trust_remote_code, num_threads)
    except DecodingError as error:
        raise ModelError(str(error)) from error
