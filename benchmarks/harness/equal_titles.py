"""Synthetic titles of one length, for which beam searches with different ideas of an end agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from genret.decoding.trie.title_trie import TitleTrie
from harness.dictionary_trie import Node, whole_dictionary
from harness.twin_models import END, FIRST

LENGTH = 10  # tokens, without the end token


@dataclass(frozen=True, slots=True)
class EqualTitles:
    """Titles, as a trie of ours and as the usual dictionaries.

    Attributes:
        number: How many.
        tokens: Tokens of each, the end token included.
        trie: Ours.
        dictionary: Nested dictionaries.
    """

    number: int
    tokens: int
    trie: TitleTrie
    dictionary: Node

    @classmethod
    def make(cls, number: int, vocab_size: int, device: torch.device | str = "cpu") -> EqualTitles:
        """Make about so many with skewed tokens, so that prefixes are shared as in real titles.

        Args:
            number: How many; fewer where some come out equal.
            vocab_size: Tokens there are.
            device: Where the trie lies.
        """
        ranks = np.random.default_rng(0).zipf(1.2, size=(number, LENGTH)) % (vocab_size - FIRST) + FIRST
        rows = np.unique(ranks, axis=0)
        rows = np.concatenate([rows, np.full((len(rows), 1), END)], axis=1)
        offsets = np.arange(len(rows) + 1, dtype=np.int64) * (LENGTH + 1)
        trie = TitleTrie.from_rows([tuple(row) for row in rows.tolist()], vocab_size, torch.device(device))
        return cls(len(rows), LENGTH + 1, trie, whole_dictionary(rows.reshape(-1).astype(np.int32), offsets))
