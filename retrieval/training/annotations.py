"""Teaching a model to write texts again with links in them, out of labelled mentions.

Mentions of one and the same text are put together, so that the model sees all links of it. A name that has no
label is taught as one that is not to be linked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from decoding.markup.spelling import spelled_text, spelled_title
from retrieval.prompts import CheckpointConfig
from retrieval.training.mentions import LabelledMention

# What the template for texts says behind the text, where a checkpoint was taught with one of its own.
_WITH_LINKS = " with links"
_NAME = "annotate"
_PIECE = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class TextLink:
    """Characters [start, end) of a text stand for a title."""

    start: int
    end: int
    title: str


@dataclass(frozen=True, slots=True)
class LinkedText:
    """A text with its links.

    Attributes:
        text: The text.
        links: In order, none overlapping another.
        chosen: The number of the link that a window of the text must have.
    """

    text: str
    links: tuple[TextLink, ...]
    chosen: int

    def annotated(self, begin: int, end: int) -> str:
        """The characters [begin, end) as a model writes them again; links that reach beyond are left out."""
        pieces, at = [], begin
        for link in self.links:
            if begin <= link.start and link.end <= end:
                title = spelled_title(link.title.encode()).decode()
                pieces += [_copied(self.text[at : link.start]), "["]
                pieces += [_copied(self.text[link.start : link.end]), "](", title, ")"]
                at = link.end
        return "".join([*pieces, _copied(self.text[at:end])])

    def window(self, fits: Callable[[int, int], bool]) -> tuple[int, int] | None:
        """The widest stretch of whole words around the chosen link that fits; None where not even it does.

        Args:
            fits: Whether characters [begin, end) do; longer stretches do not where shorter ones do not.
        """
        best = self._around(0)
        if not fits(*best):
            return None
        narrow, wide = 0, 1 + len(self.text)
        while wide - narrow > 1:
            middle = (narrow + wide) // 2
            stretch = self._around(middle)
            if fits(*stretch):
                narrow, best = middle, stretch
            else:
                wide = middle
        return best

    def _around(self, num_chars: int) -> tuple[int, int]:
        """The chosen link with so many characters on both sides, without parts of words or of other links."""
        link = self.links[self.chosen]
        begin, end = max(link.start - num_chars, 0), min(link.end + num_chars, len(self.text))
        words = [(found.start(), found.end()) for found in _PIECE.finditer(self.text)]
        begin = min((place for place, _ in words if begin <= place <= link.start), default=link.start)
        end = max((place for _, place in words if link.end <= place <= end), default=link.end)
        for other in self.links:
            if other.start < begin < other.end:
                begin = other.end
            if other.start < end < other.end:
                end = other.start
        return begin, end


def linked_texts(mentions: Sequence[LabelledMention]) -> list[LinkedText]:
    """Return for each mention its text with all links that are known of it, itself the chosen one.

    Of links that overlap, those that come first in the order given stand; the chosen one always does.
    """
    known: dict[str, list[TextLink]] = {}
    own = []
    for labelled in mentions:
        mention = labelled.mention
        start = len(mention.left)
        link = TextLink(start, start + len(mention.mention), labelled.title)
        text = f"{mention.left}{mention.mention}{mention.right}"
        known.setdefault(text, []).append(link)
        own.append((text, link))
    return [_linked(text, link, known[text]) for text, link in own]


def with_annotations(config: CheckpointConfig) -> CheckpointConfig:
    """Return a config with a template for texts with links beside those the checkpoint was taught with."""
    default = config.prompt(None)
    if config.annotate_prompt is not None or config.is_default_built_in:
        return config
    template = replace(default, name=_NAME, suffix=_WITH_LINKS + default.suffix, lowercase=False)
    return replace(config, prompts={**config.prompts, _NAME: template}, annotate_prompt=_NAME)


def _linked(text: str, chosen: TextLink, links: Sequence[TextLink]) -> LinkedText:
    kept = [chosen]
    for link in links:
        if all(link.end <= other.start or other.end <= link.start for other in kept):
            kept.append(link)
    kept.sort(key=lambda link: link.start)
    return LinkedText(text, tuple(kept), kept.index(chosen))


def _copied(text: str) -> str:
    return spelled_text(text.encode()).decode()
