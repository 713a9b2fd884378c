"""Trie beam search: the k most probable rows, with a certificate when the list is proven exact."""

from decoding.beam_search.algorithm import beam_search
from decoding.beam_search.goal import FinishedRows, Goal
from decoding.beam_search.results import BeamResult

__all__ = ["BeamResult", "FinishedRows", "Goal", "beam_search"]
