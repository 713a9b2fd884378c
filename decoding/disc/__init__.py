"""DISC: samples whole rows, without bias, from a language model restricted to a constraint.

`algorithm` is the paper's algorithm; the proposers are ways to make its draws. Knows any session and any
constraint. It must not know transformers, tries, entities or texts.
"""

from genret.decoding.disc.algorithm import disc
from genret.decoding.disc.draws import DiscResult, DiscSample

__all__ = ["DiscResult", "DiscSample", "disc"]
