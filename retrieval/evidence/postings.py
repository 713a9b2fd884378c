"""Cuts texts into terms, words and letter trigrams, and finds the texts that have them, by BM25.

Texts are compared without case, accents and punctuation. Terms are found for many texts at once: a block of
texts is one array of characters.

Postings are lists in blocks of 65,536 texts. A block's lists hold two-byte places in the block, and its
scores are summed in one array that fits a core's cache. A text has a term or not, for titles hardly ever
repeat a word; so a term counts the same in all its texts, and no weights are stored:

    score(q, d) = length_factor(d) * sum of idf(t) over the terms t of q that d has
    idf(t) = log(1 + (N - n(t) + 1/2) / (n(t) + 1/2))
    length_factor(d) = (k1 + 1) / (1 + k1 * (1 - b + b * length(d) / mean length))

(Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009, equation 3.15, with term frequency 1.)
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genret.retrieval.evidence import loops

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

BLOCK_TEXTS = 1 << 16
_K1, _B = 1.2, 0.5
_MAX_LENGTH = 255
# Terms of a query that are looked up, the rarest ones: the others hardly tell texts apart.
_MAX_TERMS = 64
# A text of the largest weight is proposed at half the score of one of the least.
_WEIGHT_FACTOR: FloatArray = np.linspace(1, 2, 256, dtype=np.float32)
_NO_WEIGHTS = np.zeros(BLOCK_TEXTS, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The lists of one block."""

    term: npt.NDArray[np.uint32]  # terms that occur, ascending; shape (t,), uint32
    # Begin of each term's list, and the end of the last; shape (t + 1,), uint32.
    begin: npt.NDArray[np.uint32]
    text: npt.NDArray[np.uint16]  # the lists: places in the block, ascending in each list; shape (p,), uint16
    length: npt.NDArray[np.uint8]  # number of terms of every text, at most 255; shape (n,), uint8

    @classmethod
    def of(cls, terms: Terms, num_texts: int) -> Block:
        """Make the lists of at most 65,536 texts."""
        pairs = terms.term.astype(np.uint64)
        pairs <<= np.uint64(16)
        pairs |= terms.text.astype(np.uint64)
        pairs.sort()
        each = (pairs >> np.uint64(16)).astype(np.uint32)
        first = np.flatnonzero(np.diff(each, prepend=each[:1] ^ 1) != 0) if len(each) else each
        length = np.bincount(terms.text, minlength=num_texts)
        return cls(
            each[first],
            np.append(first, len(pairs)).astype(np.uint32),
            pairs.astype(np.uint16),
            np.minimum(length, _MAX_LENGTH).astype(np.uint8),
        )

    @classmethod
    def joined(cls, blocks: Sequence[Block]) -> Block:
        """Join the lists of the same texts by ascending spans of terms."""
        if len(blocks) == 1:
            return blocks[0]
        ends = np.cumsum([0, *(len(block.text) for block in blocks)])
        begin = [block.begin[:-1] + np.uint32(end) for block, end in zip(blocks, ends, strict=False)]
        length = np.sum([block.length for block in blocks], axis=0, dtype=np.uint32)
        return cls(
            np.concatenate([block.term for block in blocks]),
            np.append(np.concatenate(begin), ends[-1:]).astype(np.uint32),
            np.concatenate([block.text for block in blocks]),
            np.minimum(length, _MAX_LENGTH).astype(np.uint8),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """The lists of a query's terms."""

    term: npt.NDArray[np.uint32]  # terms of the query; shape (q,), uint32
    begin: IntArray  # begin of each term's list in each block; shape (blocks, q), int64
    end: IntArray  # end of each list; the begin if there is none; shape (blocks, q), int64
    # Inverse document frequency; for unknown terms as if one text had it; shape (q,), float32.
    idf: FloatArray
    is_known: Mask  # whether any text has the term; shape (q,), bool


class TermLists:
    """The lists of all blocks, each of 65,536 texts but the last. Safe to use from several threads."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self.num_texts = sum(len(block.length) for block in blocks)
        total = sum(len(block.text) for block in blocks)
        mean = max(total / max(self.num_texts, 1), 1.0)
        lengths = np.arange(_MAX_LENGTH + 1, dtype=np.float32)
        self.length_factor: FloatArray = (_K1 + 1) / (1 + _K1 * (1 - _B + _B * lengths / mean))

    def look_up(self, terms: npt.NDArray[np.uint32]) -> Lookup:
        """Look up the lists of a query's distinct terms."""
        shape = (len(self._blocks), len(terms))
        begin, end = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for i, block in enumerate(self._blocks):
            at = np.searchsorted(block.term, terms)
            at[at == len(block.term)] = 0
            found = block.term[at] == terms if len(block.term) else np.zeros(len(terms), np.bool_)
            begin[i] = block.begin[at]
            end[i] = np.where(found, block.begin[at + 1] if len(block.term) else 0, begin[i])
        count = (end - begin).sum(axis=0)
        idf = np.log1p((self.num_texts - np.maximum(count, 1) + 0.5) / (np.maximum(count, 1) + 0.5))
        return Lookup(terms, begin, end, idf.astype(np.float32), count > 0)

    def search(
        self,
        lookup: Lookup,
        size: int,
        owner: npt.NDArray[np.int32] | None = None,
        allowed: Mask | None = None,
        weight: npt.NDArray[np.uint8] | None = None,
    ) -> tuple[IntArray, FloatArray]:
        """Return the best texts, best first, and their scores; ties by weight, then by number.

        At most `size` texts come. With weights, 0 to 255, as many further ones follow: the best by score
        times 1 + weight / 255. So among very many names alike, as for a query with a typing error or half a
        name, the well-known ones are found. Shapes: owner and weight (num_texts,), allowed (num_entities,).
        """
        chosen = np.flatnonzero(lookup.is_known)
        if len(chosen) > _MAX_TERMS:
            chosen = np.sort(chosen[np.argsort(-lookup.idf[chosen], kind="stable")[:_MAX_TERMS]])
        totals = np.zeros(BLOCK_TEXTS, np.float32)
        room = (np.empty(BLOCK_TEXTS, np.int32), np.empty(BLOCK_TEXTS, np.float32))
        best = _Best(size, weight)
        for i, block in enumerate(self._blocks):
            begin, end = lookup.begin[i, chosen], lookup.end[i, chosen]
            loops.accumulate(block.text, begin, end, lookup.idf[chosen], totals)
            first = i * BLOCK_TEXTS
            mine = _NO_WEIGHTS if weight is None else weight[first : first + BLOCK_TEXTS]
            lists = (block.text, begin, end, totals)
            factors = (block.length, self.length_factor, mine, _WEIGHT_FACTOR)
            count = loops.best_of_block(lists, factors, best.least, room)
            if not count:
                continue
            place, score = room[0][:count].astype(np.int64) + first, room[1][:count].copy()
            if allowed is not None:
                kept = allowed[place if owner is None else owner[place]]
                place, score = place[kept], score[kept]
            best.add(place, score)
        return best.found()

    def scores_of(self, lookup: Lookup, texts: IntArray) -> FloatArray:
        """Return the scores of texts by all terms of the query. Shape: (len(texts),)."""
        sums = np.zeros(len(texts), np.float32)
        block = texts // BLOCK_TEXTS
        for i in np.unique(block).tolist():
            mine = np.flatnonzero(block == i)
            places = (texts[mine] % BLOCK_TEXTS).astype(np.uint16)
            some = np.zeros(len(mine), np.float32)
            loops.overlaps(self._blocks[i].text, lookup.begin[i], lookup.end[i], lookup.idf, places, some)
            sums[mine] = some * self.length_factor[self._blocks[i].length[places]]
        return sums


class _Best:
    """The best texts so far, by score and by weighted score."""

    def __init__(self, size: int, weight: npt.NDArray[np.uint8] | None) -> None:
        self._size = size
        self._weight = weight
        self._texts: IntArray = np.empty(0, np.int64)
        self._scores: FloatArray = np.empty(0, np.float32)
        self.least = (np.float32(0), np.float32(0 if weight is not None else np.inf))

    def add(self, texts: IntArray, scores: FloatArray) -> None:
        """Add texts, and drop those that can no longer be among the best."""
        self._texts = np.concatenate([self._texts, texts])
        self._scores = np.concatenate([self._scores, scores])
        if len(self._texts) <= 4 * self._size:
            return
        by = [self._scores] if self._weight is None else [self._scores, self._weighted()]
        least = [np.partition(values, -self._size)[-self._size] for values in by]
        self.least = (least[0], least[1] if len(least) > 1 else np.float32(np.inf))
        kept = np.any([values >= bound for values, bound in zip(by, least, strict=True)], axis=0)
        self._texts, self._scores = self._texts[kept], self._scores[kept]

    def found(self) -> tuple[IntArray, FloatArray]:
        """Return the best texts and their scores."""
        if self._weight is None:
            order = np.lexsort((self._texts, -self._scores))[: self._size]
        else:
            weight = -self._weight[self._texts].astype(np.int64)
            order = np.lexsort((self._texts, weight, -self._scores))[: self._size]
            further = np.lexsort((self._texts, weight, -self._weighted()))[: self._size]
            order = np.concatenate([order, further[~np.isin(further, order)]])
        return self._texts[order], self._scores[order]

    def _weighted(self) -> FloatArray:
        assert self._weight is not None
        return self._scores * _WEIGHT_FACTOR[self._weight[self._texts]]


UIntArray = npt.NDArray[np.uint32]

# To be changed with the rules for terms: stored lists must have been made by the same rules.
TERMS_VERSION = 1

# Characters of a text that count, from its beginning: a megabyte of different words takes seconds.
MAX_TEXT = 1 << 14

_SPACE, _LINE = 32, 10
# Marks of Latin, Greek, Cyrillic, Hebrew and Arabic; the vowel signs of other scripts are letters.
_MARKS = re.compile("[\u0300-\u036f\u0591-\u05bd\u064b-\u065f]+")
_APOSTROPHES = re.compile("['’ʼ`]+")
# Blanks and punctuation: ASCII, Latin-1, general, CJK, full width; some of other scripts is in `_LETTERS`.
_BREAKS = re.compile("[^\n0-9A-Za-z\u00c0-\u1fff\u2070-\u2fff\u3040-\ufeff\uff10-\uff19\uff21-\U0010ffff]+")
_LETTERS = {
    "ø": "o",
    "ł": "l",
    "đ": "d",
    "ð": "d",
    "þ": "th",
    "æ": "ae",
    "œ": "oe",
    "ı": "i",
    "ς": "σ",
    "ß": "ss",
} | dict.fromkeys("×÷،؛؟۔।॥", " ")
# These are rare, and looking for them first saves a fifth of the time.
_RARE = re.compile(f"[{''.join(_LETTERS)}]")
# Hashes [begin, end).
Span = tuple[int, int]
ALL_HASHES: Span = (0, 1 << 32)
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The distinct terms of texts."""

    term: UIntArray  # hashes, ascending per text; shape (n,), uint32
    text: IntArray  # number of each term's text, ascending; shape (n,), int64


def fold(text: str) -> str:
    """Return a text as it is compared: small letters without accents, one blank between words.

    Line breaks stay: they separate the texts of a block.
    """
    if not text.isascii():
        # A lone acute accent stands for an apostrophe; NFKD would make it a blank.
        text = _MARKS.sub("", unicodedata.normalize("NFKD", text.replace("´", "'")))
        text = unicodedata.normalize("NFC", _APOSTROPHES.sub("", text))
    text = _APOSTROPHES.sub("", text).lower()
    if not text.isascii():
        text = _RARE.sub(lambda found: _LETTERS[found.group()], text)
    return _BREAKS.sub(" ", text)


def fold_all(texts: Sequence[str]) -> list[str]:
    """Return texts as they are compared; a text of punctuation alone keeps it."""
    if not texts:
        return []
    joined = "\n".join(text[:MAX_TEXT].replace("\n", " ") for text in texts)
    folded = [text.strip() for text in fold(joined).split("\n")]
    return [text or " ".join(raw[:MAX_TEXT].lower().split()) for text, raw in zip(folded, texts, strict=True)]


class Characters:
    """The characters of texts folded by `fold_all`, from which both kinds of terms are made."""

    def __init__(self, folded: Sequence[str]) -> None:
        block = "\n" + "\n".join(folded) + "\n"
        codes = np.array([block]).view(np.uint32).astype(np.uint64)
        is_line = codes == _LINE
        self._inside = ~(is_line | (codes == _SPACE))
        self._codes = np.where(is_line, np.uint64(_SPACE), codes)
        self._text = np.cumsum(is_line, dtype=np.int64) - 1

    def words(self, hashes: Span = ALL_HASHES) -> Terms:
        """Return the words whose hashes lie in a span."""
        inside = self._inside
        begins = np.flatnonzero(inside[1:] & ~inside[:-1]) + 1
        if not len(begins):
            return Terms(np.empty(0, np.uint32), np.empty(0, np.int64))
        at = np.arange(len(inside))
        word = np.cumsum(inside & ~np.concatenate([[False], inside[:-1]])) - 1
        place = np.where(inside, at - begins[np.maximum(word, 0)], 0)
        powers = _powers(int(place.max(initial=0)) + 1)
        parts = np.where(inside, (self._codes + np.uint64(1)) * powers[place], np.uint64(0))
        return _distinct(_mixed(np.add.reduceat(parts, begins)), self._text[begins], hashes)

    def letters(self, hashes: Span = ALL_HASHES) -> Terms:
        """Return the trigrams around each letter, with a blank at each end of a word, in a span of hashes."""
        middle = np.flatnonzero(self._inside)
        codes = self._codes
        packed: npt.NDArray[np.uint64] = codes[middle - 1] << np.uint64(42)
        packed |= (codes[middle] << np.uint64(21)) | codes[middle + 1]
        return _distinct(_mixed(packed), self._text[middle], hashes)


def _powers(count: int) -> npt.NDArray[np.uint64]:
    powers = np.full(count, np.uint64(0x100000001B3))
    powers[0] = 1
    return np.multiply.accumulate(powers)


def _mixed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    keys = (keys ^ (keys >> np.uint64(29))) * _ODD
    return (keys ^ (keys >> np.uint64(32))) & np.uint64(0xFFFFFFFF)


def _distinct(term: npt.NDArray[np.uint64], text: IntArray, hashes: Span) -> Terms:
    if hashes != ALL_HASHES:
        kept = (term >= np.uint64(hashes[0])) & (term < np.uint64(hashes[1]))
        term, text = term[kept], text[kept]
    pairs = (text.astype(np.uint64) << np.uint64(32)) | term
    pairs.sort()  # `np.unique` hashes first, which takes ten times as long
    pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])[: len(pairs)]]
    return Terms(pairs.astype(np.uint32), (pairs >> np.uint64(32)).astype(np.int64))
