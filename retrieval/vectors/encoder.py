"""Embeds texts by a Hugging Face model: the mean of its last hidden states over the tokens of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel

from genret.decoding.errors import DecodingError
from genret.decoding.model.model_loading import load_config, load_weights, resolve_device
from genret.retrieval.checkpoints import model_fingerprint
from genret.retrieval.errors import ModelError
from genret.retrieval.text import TextTokenizer
from genret.retrieval.vectors.embedder import FloatMatrix, refuse_non_finite

# For models that name no number of positions: their tokenizers say 512, or nothing.
_DEFAULT_POSITIONS = 512

# Limits of a batch: tokens, padding included, and texts.
_BATCH_TOKENS = 16_384
_BATCH_TEXTS = 512


class EncoderEmbedder:
    """The mean of a model's last hidden states over the tokens of a text, special ones included.

    An encoder-decoder contributes its encoder. Computed in float32 everywhere, because vectors from different
    devices are compared. Safe to use from several threads.

    Args:
        place: Checkpoint directory or hub id, with safetensors weights and a tokenizer.json.
        device: "cpu", "cuda", "cuda:1" or "auto".

    Attributes:
        dimensions: Size of a hidden state.
        fingerprint: Fingerprint of the checkpoint's files.
        max_tokens: Length to which texts are cut, special tokens included.

    Raises:
        ModelError: the checkpoint cannot be used.
    """

    def __init__(self, place: str | Path, device: str = "cpu") -> None:
        self._place = place
        tokenizer = TextTokenizer.load(place)
        try:
            config = load_config(place, trust_remote_code=False)
            self._device = resolve_device(device)
            # A mean needs no pooler, and many checkpoints have none.
            model = load_weights(
                place, config, self._device, "float32", False, auto_class=AutoModel, unused=("pooler.",)
            )
        except DecodingError as error:
            raise ModelError(str(error)) from error
        encoder: nn.Module = model.get_encoder() if config.is_encoder_decoder else model
        self._encoder = encoder.eval()
        width = len(cast("Tensor", model.get_input_embeddings().weight))
        if tokenizer.vocab_size > width:
            raise ModelError(
                f"{place}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, the model embeds {width}"
            )
        self._tokenizer = tokenizer
        self.dimensions = int(config.get_text_config(decoder=False).hidden_size)
        self.fingerprint = model_fingerprint(str(place))
        self.max_tokens = _num_positions(self._encoder, config.get_text_config(decoder=False))
        before, after = tokenizer.frame
        if len(before) + len(after) >= self.max_tokens:
            raise ModelError(f"{place}: the model's {self.max_tokens} positions leave no room for text")

    def embed_texts(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of catalogue texts (`TextEmbedder`); ModelError if they are not finite."""
        rows = self._token_rows(texts)
        vectors = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        for batch in _batches([len(row) for row in rows]):
            vectors[batch] = self._forward([rows[i] for i in batch])
        refuse_non_finite(vectors, self._place)
        return vectors

    embed_queries = embed_texts

    def _token_rows(self, texts: Sequence[str]) -> list[list[int]]:
        before, after = self._tokenizer.frame
        room = self.max_tokens - len(before) - len(after)
        return [before + ids[:room] + after for ids in self._tokenizer.encode_texts(texts)]

    @torch.inference_mode()
    def _forward(self, rows: list[list[int]]) -> FloatMatrix:
        ids, mask = (tensor.to(self._device) for tensor in padded(rows))
        vectors: FloatMatrix = mean_states(self._encoder, ids, mask).cpu().numpy()
        return vectors


def padded(rows: Sequence[Sequence[int]], fill: int = 0, side: str = "right") -> tuple[Tensor, Tensor]:
    """Return rows of token ids, padded on one side, and their mask, 1 for tokens. Shapes: (n, T), int64."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    mask = [torch.ones_like(row) for row in ids]
    return pad_sequence(ids, True, fill, side), pad_sequence(mask, True, 0, side)


def mean_states(encoder: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the means of an encoder's last hidden states, scaled to length 1. Shape: (n, d), float32.

    `ids` are padded token ids; `mask` is 1 for tokens, at least one in a row. Shapes: (n, T).
    """
    hidden: Tensor = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    # States at padded places may be anything, even NaN.
    means = hidden.float().masked_fill(mask[:, :, None] == 0, 0).sum(1) / mask.sum(1, keepdim=True)
    return nn.functional.normalize(means, dim=1)


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Yield places of texts to embed together, longest first; texts without tokens are left out."""
    order = [i for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]) if lengths[i]]
    begin = 0
    while begin < len(order):
        size = max(1, min(_BATCH_TEXTS, _BATCH_TOKENS // lengths[order[begin]]))
        yield order[begin : begin + size]
        begin += size


def _num_positions(encoder: nn.Module, config: object) -> int:
    """Return how many tokens a model takes: fewer than its positions if the first ones are for padding."""
    named = getattr(config, "max_position_embeddings", None)
    if named is None:
        return _DEFAULT_POSITIONS
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(named) - cast("int", module.padding_idx) - 1
    return int(named)
