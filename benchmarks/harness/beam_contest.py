"""Beam search on the same work, ours and that of transformers.

`generate` is driven in two ways: as anybody calls it, and with a prompt that was run once, whose keys and
values are then repeated for the beams, which is the most a caller can do for it. Both return sums of
log-probabilities (`length_penalty` 0), so that lists can be compared by sets and by scores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.constraints import Constraint
from genret.decoding.language_model import KvUsage, LanguageModel
from genret.decoding.params import BeamParams
from harness.device_loop import synchronize
from harness.dictionary_trie import Node
from harness.twin_models import END, PAD

Row = tuple[int, ...]
Lists = list[dict[Row, float]]  # by query: the score of every row found


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One search of a batch of prompts.

    Attributes:
        prefill_s: Time until every prompt had been run and, where they are, repeated for the beams.
        decode_s: Time of all else.
        kv_bytes: Keys and values: of ours the peak, of transformers' what the cache holds at the end.
        lists: What was found.
        usage: Of ours, the session's own account.
        num_steps: Of ours, forwards behind the prompts.
    """

    prefill_s: float
    decode_s: float
    kv_bytes: int
    lists: Lists
    usage: KvUsage | None = None
    num_steps: int = 0

    @property
    def total_s(self) -> float:
        """Time of the whole search."""
        return self.prefill_s + self.decode_s


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two searches found the same.

    Attributes:
        same_rows: Whether the sets are equal for every query.
        largest_difference: Between the scores of a row that both found.
    """

    same_rows: bool
    largest_difference: float

    @classmethod
    def of(cls, one: Lists, other: Lists) -> Agreement:
        """Compare two lists query by query."""
        pairs = list(zip(one, other, strict=True))
        differences = [abs(a[row] - b[row]) for a, b in pairs for row in a.keys() & b.keys()]
        return cls(all(a.keys() == b.keys() for a, b in pairs), max(differences, default=0.0))

    def holds(self, tolerance: float) -> bool:
        """Whether rows are the same and scores within a tolerance."""
        return self.same_rows and self.largest_difference <= tolerance


def search(model: LanguageModel, constraint: Constraint, prompts: Tensor, beams: int) -> Run:
    """Search with ours. `prompts` shape: (Q, T), int64."""
    begun = time.perf_counter()
    session = model.prefill(prompts.tolist())
    synchronize(model.device)
    filled = time.perf_counter()
    results = beam_search(session, constraint, [BeamParams(beams, beams)] * len(prompts))
    ended = time.perf_counter()
    usage = session.usage
    return Run(
        filled - begun,
        ended - filled,
        usage.peak_bytes,
        found(results),
        usage,
        finished(results)[0].num_steps,
    )


def finished(results: Sequence[Any]) -> list[BeamResult]:
    """Return results of which none was cancelled."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return list(results)


def found(results: Sequence[Any]) -> Lists:
    """Return what a search found, by query."""
    return [{h.token_ids: h.logprob for h in result.hypotheses} for result in finished(results)]


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    prompts: Tensor,
    beams: int,
    new_tokens: int,
    trie: Node | None,
    prefilled: bool = False,
) -> Run:
    """Search with `generate`.

    Args:
        model: Stock, in its usual attention.
        prompts: Shape: (Q, T), int64.
        beams: Beams, and sequences returned.
        new_tokens: Most tokens written; without a trie, exactly so many, the end token not among them.
        trie: What may be written.
        prefilled: Whether to run the prompts once and repeat their cache, but for the last token, which
            `generate` needs to see.
    """
    width = prompts.shape[1]
    options: dict[str, Any] = {"min_new_tokens": new_tokens}
    if trie is not None:
        options = {"prefix_allowed_tokens_fn": lambda _, written: _allowed(trie, written[width:].tolist())}
    begun = time.perf_counter()
    if prefilled:
        cache = DynamicCache(config=model.config)
        model(prompts[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(beams)
        options["past_key_values"] = cache
    clock = _FirstForward(model)
    filled = time.perf_counter()
    try:
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=new_tokens,
            do_sample=False,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
            pad_token_id=PAD,
            eos_token_id=END,
            **options,
        )
        ended = time.perf_counter()
    finally:
        clock.remove()
    filled = filled if prefilled else clock.ended
    return Run(filled - begun, ended - filled, _cache_bytes(output), _lists(output, len(prompts), width))


def _allowed(trie: Node, written: list[int]) -> list[int]:
    """Walk from the root, as `prefix_allowed_tokens_fn` has to; ended and idle beams are padded."""
    node = trie
    for token in written:
        node = node.get(token, {})
    return list(node) or [PAD]


class _FirstForward:
    """Notes when the first forward ends: the prompts have been run."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.ended = 0.0
        self._hook = model.register_forward_hook(self._note)

    def _note(self, module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if not self.ended:
            synchronize(next(module.parameters()).device)
            self.ended = time.perf_counter()

    def remove(self) -> None:
        self._hook.remove()


def _cache_bytes(output: Any) -> int:
    layers = output.past_key_values.layers
    return sum(part.numel() * part.element_size() for layer in layers for part in (layer.keys, layer.values))


def _lists(output: Any, queries: int, width: int) -> Lists:
    sequences = output.sequences[:, width:].reshape(queries, -1, output.sequences.shape[1] - width).tolist()
    scores = output.sequences_scores.reshape(queries, -1).tolist()
    return [
        {_cut(row): score for row, score in zip(rows, column, strict=True)}
        for rows, column in zip(sequences, scores, strict=True)
    ]


def _cut(row: list[int]) -> Row:
    return tuple(row[: row.index(END) + 1] if END in row else row)
