"""Errors of `decoding`: a flat tree below `DecodingError`, and below `DecodingCancelledError` one more."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class DecodingError(Exception):
    """Base of every error raised on purpose by `decoding`."""


class InvalidLogitsError(DecodingError):
    """The model's logits hold NaN or +inf, so no probability can be computed from them."""


class ModelLoadError(DecodingError):
    """The checkpoint cannot be loaded: missing, incomplete, not safetensors, or unfit for the device."""


class UnsupportedModelError(DecodingError):
    """The model's architecture cannot be decoded exactly by the token tree."""


class KernelsError(DecodingError):
    """The kernels asked for by name are not installed, or cannot run on the device."""


class EngineError(DecodingError):
    """The engine that runs the model failed, or cannot be reached now; a later call may succeed."""


class PromptTooLongError(DecodingError):
    """The prompt leaves no room for a title in the model's positions."""


class DecodingCancelledError(DecodingError):
    """The caller cancelled the request between two decode steps."""


class DeadlineExceededError(DecodingCancelledError):
    """The request's deadline passed between two decode steps."""
