"""All annotations of a text, found by trying every set of mentions: what a grammar must allow."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Sequence

from genret.decoding.markup.link_syntax import MentionRules


def is_mention(text: str, begin: int, end: int, rules: MentionRules) -> bool:
    """Whether a stretch may be a mention, asked one condition after the other."""
    mention = text[begin:end]
    if not mention or len(mention) > rules.max_chars or mention != mention.strip():
        return False
    if re.search(r"(\r\n|[\n\r])[ \t]*(\r\n|[\n\r])", mention):
        return False
    if not any(c.isalnum() or unicodedata.category(c) in ("So", "Sc", "Sm") for c in mention):
        return False
    for place in (begin, end):
        around = text[max(place - 1, 0) : place + 1] if place else ""
        if len(around) < 2:
            continue
        if unicodedata.category(around[1]).startswith("M") or "\u200d" in around:
            return False
        if rules.word_boundaries and re.fullmatch(r"\w\w", around) and around.isascii():
            return False
    return True


def annotations(text: str, titles: Sequence[str], rules: MentionRules) -> set[bytes]:
    """Every legal annotation of a text."""
    spans = [
        (begin, end)
        for begin in range(len(text))
        for end in range(begin + 1, len(text) + 1)
        if is_mention(text, begin, end, rules)
    ]
    most = len(spans) if rules.max_mentions is None else rules.max_mentions
    found = set()
    for count in range(min(most, len(spans)) + 1):
        for chosen in itertools.combinations(spans, count):
            if any(one[1] > other[0] for one, other in itertools.pairwise(chosen)):
                continue
            for named in itertools.product(titles, repeat=count):
                found.add(_written(text, chosen, named).encode())
    return found


def _written(text: str, spans: Sequence[tuple[int, int]], titles: Sequence[str]) -> str:
    pieces, at = [], 0
    for (begin, end), title in zip(spans, titles, strict=True):
        pieces += [_copied(text[at:begin]), "[", _copied(text[begin:end]), "](", _named(title), ")"]
        at = end
    return "".join([*pieces, _copied(text[at:])])


def _copied(text: str) -> str:
    return re.sub(r"([\\\[\]])", r"\\\1", text)


def _named(title: str) -> str:
    inner = title
    while (shorter := re.sub(r"\([^()]*\)", "", inner)) != inner:
        inner = shorter
    if not re.search(r"[()\\]", inner):
        return title if "\\" not in title else re.sub(r"([\\()])", r"\\\1", title)
    return re.sub(r"([\\()])", r"\\\1", title)
