"""Tokens that many prompts begin with, run once by a transformers model."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from decoding.language_model import PromptPrefix
from decoding.tree_cache import PrefixSegment, TreeCache


class TreePrefix:
    """Keys and values of tokens that many prompts begin with (`decoding.language_model.PromptPrefix`).

    Immutable; sessions refer to the segments and never copy them. Does not keep the model alive.

    Args:
        model: The model that has run the tokens.
        token_ids: The tokens, at least one.
        segments: Their keys and values by model layer.
    """

    __slots__ = ("_model", "_model_type", "_segments", "_token_ids")

    def __init__(
        self, model: PreTrainedModel, token_ids: Sequence[int], segments: tuple[PrefixSegment, ...]
    ) -> None:
        self._model = weakref.ref(model)
        self._model_type: str = model.config.model_type
        self._token_ids = tuple(token_ids)
        self._segments = segments

    @classmethod
    def of(cls, model: PreTrainedModel, token_ids: Sequence[int], cache: TreeCache) -> TreePrefix:
        """Take the one prompt of a cache as a prefix."""
        layers = range(len(cache.layers))
        return cls(model, token_ids, tuple(cache.tree_layer(index).prompt for index in layers))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens."""
        return self._token_ids

    @property
    def segments(self) -> tuple[PrefixSegment, ...]:
        """Keys and values by model layer. Shapes: (1, H_kv, S, D) and (1, H_kv, S, D_v)."""
        return self._segments

    @property
    def kv_bytes(self) -> int:
        """Bytes of key/value cache it holds."""
        return sum(part.untyped_storage().nbytes() for part in self._parts())

    def _parts(self) -> list[Tensor]:
        return [part for segment in self._segments for part in segment]


def checked_prefix(prefix: PromptPrefix, model: PreTrainedModel) -> TreePrefix:
    """The prefix, if this very model has made it, in the type and on the device it computes with now.

    Raises:
        ValueError: it has not, or has been moved since.
    """
    name = model.config.model_type
    if not isinstance(prefix, TreePrefix):
        raise ValueError(
            f"prefix must come from this model's share_prefix (model type {name!r}), "
            f"got a {type(prefix).__name__}"
        )
    if prefix._model() is not model:
        raise ValueError(
            f"prefix was made by another model (model type {prefix._model_type!r}) than this one "
            f"(model type {name!r}); keys and values mean nothing to another model"
        )
    made: tuple[torch.dtype, torch.device] = (prefix.segments[0][0].dtype, prefix.segments[0][0].device)
    if made != (model.dtype, model.device):
        raise ValueError(
            f"prefix was made when model type {name!r} computed in {made[0]} on {made[1]}, "
            f"it now computes in {model.dtype} on {model.device}"
        )
    return prefix


def check_continuations(prefix: PromptPrefix, prompts: Sequence[Sequence[int]]) -> None:
    """Refuse prompts that do not begin with the prefix, or end with it.

    Raises:
        ValueError: naming the prompt and where it differs.
    """
    shared = prefix.token_ids
    for index, prompt in enumerate(prompts):
        both = range(min(len(shared), len(prompt)))
        differing = next((place for place in both if prompt[place] != shared[place]), None)
        if differing is not None:
            raise ValueError(
                f"prompt {index} does not begin with the prefix: token {differing} is {prompt[differing]}, "
                f"the prefix has {shared[differing]}"
            )
        if len(prompt) <= len(shared):
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens, it must go on after the prefix of "
                f"{len(shared)} with at least one more"
            )
