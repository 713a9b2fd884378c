"""Cutting a text into windows that a model can read and write again.

Every character is in exactly one window. Where the cuts are depends on the text from the beginning on and on
nothing else: what lies behind a window has no influence on it but for the few words that it is cut among.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

CountTokens = Callable[[Sequence[str]], Sequence[int]]

# Blanks stand with the word behind them, as most tokenizers cut.
_PIECE = re.compile(r"\s*\S+|\s+")
_PARAGRAPH_END = re.compile(r"(?:\r\n|\r|\n)[^\S\r\n]*(?:\r\n|\r|\n)|\u2029")
_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"'\u2019\u201d)\]]*$")
# Characters of a text that are looked at for one window, per token of it.
_CHARS_PER_TOKEN = 8
# A window is not cut at the end of a paragraph, or of a sentence, that leaves less than this share of it.
_LEAST_PARAGRAPH, _LEAST_SENTENCE = 0.5, 0.25


def cut_windows(
    text: str, begin: int, end: int, max_tokens: int, count_tokens: CountTokens
) -> Iterator[tuple[int, int]]:
    """Yield windows [begin, end) of a text, in order, one behind the other.

    A window ends with a paragraph or with a sentence where it would otherwise be cut among words, and within
    a word only where the word alone is longer than a window.

    Args:
        text: The text.
        begin: First character of the first window.
        end: Character behind the last one.
        max_tokens: Most tokens of a window, at least 1.
        count_tokens: Tokens of each of some pieces.
    """
    while begin < end:
        reach = min(end, begin + max_tokens * _CHARS_PER_TOKEN)
        pieces = [found.end() for found in _PIECE.finditer(text, begin, reach)]
        stop = _fitting(text, begin, pieces, max_tokens, count_tokens)
        if stop < end:
            stop = _better(text, begin, [piece for piece in pieces if piece <= stop], stop)
        yield begin, stop
        begin = stop


def halves(text: str, begin: int, end: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Cut a window in two, between words where it has two; None where it is one character."""
    middle = (begin + end) // 2
    if middle == begin:
        return None
    ends = [found.end() for found in _PIECE.finditer(text, begin, end)][:-1]
    cut = min(ends, key=lambda place: (abs(place - middle), place)) if ends else middle
    return (begin, cut), (cut, end)


def _fitting(text: str, begin: int, ends: Sequence[int], most: int, count_tokens: CountTokens) -> int:
    """Where the last piece ends that fits; within the first one where not even that does."""
    starts = [begin, *ends[:-1]]
    counts = count_tokens([text[start:stop] for start, stop in zip(starts, ends, strict=True)])
    taken, last = 0, begin
    for stop, count in zip(ends, counts, strict=True):
        taken += count
        if taken > most:
            break
        last = stop
    if last > begin:
        return last
    fitting, beyond = begin + 1, ends[0]  # a character alone is never cut
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if count_tokens([text[begin:middle]])[0] <= most:
            fitting = middle
        else:
            beyond = middle
    return fitting


def _better(text: str, begin: int, ends: Sequence[int], stop: int) -> int:
    """The end of a paragraph or of a sentence, where there is one near enough to the end of the window."""
    size = stop - begin
    # Blanks are the next piece's, so that a paragraph ends with a piece that a break begins.
    for least, is_end in ((_LEAST_PARAGRAPH, _ends_paragraph), (_LEAST_SENTENCE, _ends_sentence)):
        for place in reversed(ends):
            if place - begin < least * size:
                break
            if is_end(text, begin, place):
                return place
    return stop


def _ends_paragraph(text: str, begin: int, place: int) -> bool:
    blanks = re.compile(r"\s*").match(text, place)
    return blanks is not None and _PARAGRAPH_END.search(blanks.group()) is not None


def _ends_sentence(text: str, begin: int, place: int) -> bool:
    if not text[place : place + 1].isspace():
        return False
    return _SENTENCE_END.search(text, max(begin, place - 8), place) is not None
