"""Log-probabilities of given rows as a stock transformers model gives them: padded batches, whole or not."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

Rows = Sequence[Sequence[int]]


@torch.no_grad()
def padded(model: PreTrainedModel, prompt: Sequence[int], rows: Rows, batch: int) -> list[float]:
    """Score prompt and row together, some rows at a time, with logits of the rows' tokens alone."""
    found: list[float] = []
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        tokens, lengths = _rectangle(some)
        width = tokens.shape[1]
        texts = torch.cat([torch.tensor(prompt).expand(len(some), -1), tokens], dim=1)
        # Rows end on the right, where nothing that counts looks; logits from the prompt's last token on.
        logits = model(input_ids=texts, use_cache=False, logits_to_keep=width + 1).logits
        found += _sums(logits[:, :-1], tokens, lengths)
    return found


class PromptOnce:
    """A prompt that was run once, whose keys and values every row gets a copy of.

    Args:
        model: The model.
        prompt: The prompt.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, prompt: Sequence[int]) -> None:
        self._model = model
        output = model(input_ids=torch.tensor([list(prompt)]), use_cache=True, logits_to_keep=1)
        self._last: Tensor = output.logits
        self._cache: DynamicCache = output.past_key_values

    @torch.no_grad()
    def scores(self, rows: Rows, batch: int) -> list[float]:
        """Score rows of at least two tokens, some at a time, each with its copy."""
        found: list[float] = []
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            tokens, lengths = _rectangle(some)
            cache = copy.deepcopy(self._cache)
            cache.batch_repeat_interleave(len(some))
            first = self._last.expand(len(some), -1, -1)
            later = self._model(input_ids=tokens[:, :-1], past_key_values=cache, use_cache=True).logits
            beginnings = _sums(first, tokens[:, :1], lengths)
            endings = _sums(later, tokens[:, 1:], lengths - 1)
            found += [one + other for one, other in zip(beginnings, endings, strict=True)]
        return found


def _rectangle(rows: Rows) -> tuple[Tensor, Tensor]:
    """Rows padded on the right, and their lengths. Shapes: (n, L) and (n, 1)."""
    lengths = torch.tensor([[len(row)] for row in rows])
    width = int(lengths.max())
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows]), lengths


def _token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Shapes: (n, L, V) and (n, L) to (n, L)."""
    return (logits.gather(2, tokens[..., None])[..., 0] - logits.logsumexp(-1)).double()


def _sums(logits: Tensor, tokens: Tensor, lengths: Tensor) -> list[float]:
    counts = torch.arange(tokens.shape[1]) < lengths
    return torch.where(counts, _token_logprobs(logits, tokens), 0.0).sum(1).tolist()
