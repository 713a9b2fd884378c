"""DISC: unbiased sampling of whole rows from a language model restricted to a constraint."""

from decoding.disc.algorithm import disc
from decoding.disc.draws import DiscResult, DiscSample

__all__ = ["DiscResult", "DiscSample", "disc"]
