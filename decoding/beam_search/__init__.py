"""Trie beam search: finds the k most probable rows, with a certificate when the list is proven exact.

Knows any session (`decoding.language_model`) and any constraint (`decoding.constraints`). It must not know
transformers, tries, entities or texts.
"""

from genret.decoding.beam_search.search_state import BeamResult, FinishedRows, Goal
from genret.decoding.beam_search.trie_beam_search import beam_search

__all__ = ["BeamResult", "FinishedRows", "Goal", "beam_search"]
