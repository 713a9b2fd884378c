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

import click
import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.constraints import Constraint
from genret.decoding.language_model import LanguageModel
from genret.decoding.params import BeamParams
from genret.decoding.trie.title_trie import TitleTrie
from harness.dictionary_trie import Node, whole_dictionary
from harness.twin_models import END, FIRST, PAD, synchronize

OURS, PLAIN, PREFILLED = "ours", "generate", "generate, prompt run once"
LENGTH = 10  # tokens of a synthetic title, without the end token

Row = tuple[int, ...]
Lists = list[dict[Row, float]]  # by query: the score of every row found


@dataclass(frozen=True, slots=True)
class Setting:
    """A cell of a table."""

    prompt: int
    beams: int
    batch: int = 1

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Read PROMPT/BEAMS/BATCH. Raises `click.BadParameter` for another form."""
        parts = text.split("/")
        if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
            raise click.BadParameter(f"a setting is PROMPT/BEAMS/BATCH, such as 512/15/8, got {text!r}")
        return cls(*map(int, parts))

    def text(self) -> str:
        """Return PROMPT/BEAMS/BATCH."""
        return f"{self.prompt}/{self.beams}/{self.batch}"

    def words(self) -> str:
        """Return the setting for people."""
        return f"prompt {self.prompt}, {self.beams} beams, {self.batch} queries"

    def prompts(self, vocab_size: int) -> Tensor:
        """Return random prompts. Shape: (batch, prompt), int64."""
        generator = torch.Generator().manual_seed(self.prompt)
        return torch.randint(FIRST, vocab_size, (self.batch, self.prompt), generator=generator)


@dataclass(frozen=True, slots=True)
class EqualTitles:
    """Synthetic titles of one length, for which beam searches with different ideas of an end agree."""

    number: int
    tokens: int  # of each, the end token included
    trie: TitleTrie
    dictionary: Node

    @classmethod
    def make(cls, number: int, vocab_size: int, device: torch.device | str = "cpu") -> EqualTitles:
        """Make about so many with skewed tokens, so that prefixes are shared as in real titles."""
        ranks = np.random.default_rng(0).zipf(1.2, size=(number, LENGTH)) % (vocab_size - FIRST) + FIRST
        rows = np.unique(ranks, axis=0)
        rows = np.concatenate([rows, np.full((len(rows), 1), END)], axis=1)
        offsets = np.arange(len(rows) + 1, dtype=np.int64) * (LENGTH + 1)
        trie = TitleTrie.from_rows([tuple(row) for row in rows.tolist()], vocab_size, torch.device(device))
        return cls(len(rows), LENGTH + 1, trie, whole_dictionary(rows.reshape(-1).astype(np.int32), offsets))


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One search of a batch of prompts."""

    prefill_s: float  # until every prompt had been run and, where they are, repeated for the beams
    decode_s: float  # all else
    kv_bytes: int  # keys and values: of ours the peak, of transformers' what the cache holds at the end
    lists: Lists

    @property
    def total_s(self) -> float:
        """Time of the whole search."""
        return self.prefill_s + self.decode_s


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparison of two searches."""

    same_rows: bool  # for every query
    largest_difference: float  # between the scores of a row that both found

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
    results = finished(beam_search(session, constraint, [BeamParams(beams, beams)] * len(prompts)))
    ended = time.perf_counter()
    lists = [{h.token_ids: h.logprob for h in result.hypotheses} for result in results]
    return Run(filled - begun, ended - filled, session.usage.peak_bytes, lists)


def finished(results: Sequence[Any]) -> list[BeamResult]:
    """Return results of which none was cancelled."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return list(results)


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    prompts: Tensor,
    beams: int,
    new_tokens: int,
    trie: Node | None,
    prefilled: bool = False,
) -> Run:
    """Search with `generate`, in the usual attention of a stock model.

    Args:
        model: The model.
        prompts: Shape: (Q, T), int64.
        beams: Beams, and sequences returned.
        new_tokens: Most tokens written; without a trie, exactly so many, the end token not among them.
        trie: Trie of the texts that may be written; None: any.
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
    first: list[float] = []  # when the first forward ended, which runs the prompts

    def note(module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if not first:
            synchronize(model.device)
            first.append(time.perf_counter())

    hook = model.register_forward_hook(note)
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
        hook.remove()
    filled = filled if prefilled else first[0]
    layers = output.past_key_values.layers
    cached = [part for layer in layers for part in (layer.keys, layer.values)]
    kv_bytes = sum(part.numel() * part.element_size() for part in cached)
    sequences = output.sequences[:, width:].reshape(len(prompts), beams, -1).tolist()
    scores = output.sequences_scores.reshape(len(prompts), beams).tolist()
    lists = [
        {_cut(row): score for row, score in zip(rows, column, strict=True)}
        for rows, column in zip(sequences, scores, strict=True)
    ]
    return Run(filled - begun, ended - filled, kv_bytes, lists)


def _allowed(trie: Node, written: list[int]) -> list[int]:
    """Walk from the root, as `prefix_allowed_tokens_fn` has to; ended and idle beams are padded."""
    node = trie
    for token in written:
        node = node.get(token, {})
    return list(node) or [PAD]


def _cut(row: list[int]) -> Row:
    return tuple(row[: row.index(END) + 1] if END in row else row)
