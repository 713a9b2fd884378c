"""What comes out of a text that was written again with links in it."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.types import Entity


@dataclass(frozen=True, slots=True)
class GeneratedMention:
    """One link.

    Attributes:
        start: First code point of the mention in the text that was given.
        end: Code point behind its last one.
        mention: The text between.
        title: The title that was written.
        entities: All entities of that title that the filter allows and that have a share in it, the greatest
            first; never empty.
        shares: P(e | title) of each of them, which sum to 1: the model has said no more than the title.
        logprob: Log-probability of the title under the model alone, given all that was written before it:
            the sum over the tokens that write some of the title or the parenthesis behind it.
        mention_logprob: The same of the tokens before these that write the mention and the brackets around
            it: how sure the model is of the mention itself.
        is_nil: Whether the log-probability of the first entity, `logprob` plus the log of its share, is below
            the least one asked for: the mention stands for none of the entities.
    """

    start: int
    end: int
    mention: str
    title: str
    entities: tuple[Entity, ...]
    shares: tuple[float, ...]
    logprob: float
    mention_logprob: float
    is_nil: bool = False
