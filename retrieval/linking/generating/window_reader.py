"""From what was written for a window to the links of the text that it is a part of."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.grammar.vocabulary.vocabulary import Vocabulary
from decoding.markup.reading import Link, read_annotated
from retrieval.errors import ModelError
from retrieval.linking.generating.mention import GeneratedMention
from retrieval.linking.generating.titles import IndexTitles
from retrieval.linking.generating.writing import WrittenWindow


@dataclass(frozen=True, slots=True)
class WindowReader:
    """Reads links.

    Attributes:
        titles: Those that links may name.
        vocabulary: Of the tokens.
        min_logprob: A link whose likeliest entity has a lower log-probability is NIL; None: none is.
    """

    titles: IndexTitles
    vocabulary: Vocabulary
    min_logprob: float | None

    def read(self, window: str, offset: int, written: WrittenWindow) -> list[GeneratedMention]:
        """Return the links of a window.

        Args:
            window: Its text.
            offset: Its first character in the whole text.
            written: What was written for it.

        Raises:
            ModelError: that is not the window with real titles in it, which the constraint rules out.
        """
        pieces = [self.vocabulary.written(token) for token in written.token_ids]
        try:
            annotated = read_annotated(b"".join(pieces))
        except ValueError as error:
            raise ModelError(f"what was written is no annotation of the text: {error}") from error
        if annotated.text != window.encode():
            raise ModelError("what was written is not the text")
        places = [*itertools.accumulate((len(character.encode()) for character in window), initial=0)]
        ends = [*itertools.accumulate(map(len, pieces))]
        return [
            self._mention(link, window, offset, places, _costs(link, ends, written.logprobs))
            for link in annotated.links
        ]

    def _mention(
        self, link: Link, window: str, offset: int, places: Sequence[int], costs: tuple[float, float]
    ) -> GeneratedMention:
        start, end = bisect_left(places, link.begin), bisect_left(places, link.end)
        entities, shares = self.titles.entities(link.title)
        if not entities:
            raise ModelError(f"{link.title!r} was written, which is no title")
        mention_logprob, logprob = costs
        return GeneratedMention(
            start=offset + start,
            end=offset + end,
            mention=window[start:end],
            title=link.title.decode(),
            entities=entities,
            shares=shares,
            logprob=logprob,
            mention_logprob=mention_logprob,
            is_nil=self.min_logprob is not None and logprob + math.log(shares[0]) < self.min_logprob,
        )


def _costs(link: Link, ends: Sequence[int], logprobs: Sequence[float]) -> tuple[float, float]:
    """The log-probabilities of the tokens of a link before its title, and of those that write the title.

    Args:
        link: The link.
        ends: Where each token ends in what was written.
        logprobs: Of each token.
    """
    first = bisect_right(ends, link.opened)
    titled = bisect_right(ends, link.titled)
    behind = bisect_left(ends, link.closed) + 1
    return math.fsum(logprobs[first:titled]), math.fsum(logprobs[titled:behind])
