"""Which tokens a random text may hold."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from decoding.architectures import input_vocab_size, text_config, vocab_size


def writable_tokens(model: PreTrainedModel) -> Tensor:
    """Ids that the model both reads and writes, but for padding, which some models do not count as text.

    Returns:
        Shape: (n,), int64.
    """
    ids = torch.arange(min(input_vocab_size(model), vocab_size(model)))
    padding = getattr(text_config(model.config), "pad_token_id", None)
    return ids if padding is None else ids[ids != padding]
