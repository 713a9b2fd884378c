"""Tables the names of an index: their spellings, how likely each is in a text, and their entities.

`WordCounts` weighs each name by the words of all names. Weights are natural logarithms of odds, chosen on the
training parts of labelled texts (benchmarks/mention_detection.py), where changing one of them by a fifth
makes little difference.

A table is made once per index, kept in files, and mapped by every process that finds names:

CACHE/names-<index digest>-<version>/names.marisa      folded names
                                    /spellings.marisa  names as they are written
                                    /offsets.npy       key -> its entities
                                    /entities.npy      entity numbers
                                    /written.npy       bits about the spellings
                                    /small.npy, /weight.npy, /start.npy, /part.npy
                                                       evidence for each key
                                    /table.json        sizes and digests of these files
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import tempfile
import time
import unicodedata
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import marisa_trie
import numpy as np
import numpy.typing as npt
from filelock import FileLock

from genret.retrieval.durable import write_synced
from genret.retrieval.errors import SourceError
from genret.retrieval.index.layout import ALIASES, ENTITY_BATCH_ROWS, TITLE
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_file
from genret.retrieval.linking.finding.find_options import ENGLISH_STOP_WORDS
from genret.retrieval.linking.finding.folding import A_WORD, fold_name

# Bits of `NameTable.written`.
AS_FOLDED = 1  # some entity writes the name as it is folded
WITHOUT_CAPITALS = 2  # some entity writes the name without a capital letter
CAPITAL_BY_CUSTOM = 4  # some entity writes it with the capital alone that all names begin with

Evidence = dict[str, npt.NDArray[Any]]
# The arrays with evidence for each key: type, and value before any spelling is seen.
EVIDENCE: dict[str, tuple[type[np.generic], float]] = {
    "written": (np.uint8, 0),
    "small": (np.uint8, 0),
    "weight": (np.float16, -np.inf),
    "start": (np.float16, -np.inf),
    "part": (np.float16, -np.inf),
}


@dataclass(frozen=True, slots=True)
class NameTable:
    """The titles and aliases of an index, folded. A key is the number of a folded name.

    K keys, P pairs of a key and an entity. The last four arrays hold `SpellingEvidence`; of several
    spellings, the largest value or every bit.
    """

    names: marisa_trie.Trie  # folded name -> key
    spellings: marisa_trie.Trie  # names folded but for their case, where that differs from the folded name
    offsets: npt.NDArray[np.int64]  # (K + 1,): entities of key k are entities[offsets[k]:offsets[k + 1]]
    entities: npt.NDArray[np.int32]  # (P,): entity numbers, ascending within a key
    written: npt.NDArray[np.uint8]  # (K,): bits about the spellings of a key
    small: npt.NDArray[np.uint8]  # (K,): words that may begin with a small letter
    weight: npt.NDArray[np.float16]  # (K,): evidence for the name
    start: npt.NDArray[np.float16]  # (K,): the same for a capital at the start of a sentence
    part: npt.NDArray[np.float16]  # (K,): evidence for a longer name around it
    max_chars: int  # length of the longest folded name
    first_marks: str  # characters, neither letters nor digits, that names begin with

    def num_entities(self, key: int) -> int:
        """Return how many entities have a name."""
        num: int = self.offsets.item(key + 1) - self.offsets.item(key)
        return num

    def entities_of(self, key: int) -> npt.NDArray[np.int32]:
        """Return the numbers of the entities that have a name, ascending."""
        return self.entities[self.offsets[key] : self.offsets[key + 1]]

    def is_written(self, key: int, folded: str, text: str) -> bool:
        """Whether some entity writes a name in the letter case of `text`, which is not folded yet."""
        spelling = fold_name(text, keep_case=True)
        if spelling == folded:
            return bool(self.written[key] & AS_FOLDED)
        return spelling in self.spellings


def build_table(index: Index) -> NameTable:
    """Read the index's titles and aliases and make their table.

    The names are read three times, one record batch at a time: memory is needed for a batch, the table
    itself, 16 bytes per name, the counts of all words, and the tries' own building.
    """
    shape = _Shape()
    names = marisa_trie.Trie(shape.watch(_names(index)))
    evidence = {name: np.full(len(names), least, kind) for name, (kind, least) in EVIDENCE.items()}
    keys, entities = _postings(index, names, shape.words, evidence)
    offsets = np.zeros(len(names) + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=len(names)), out=offsets[1:])
    del keys  # 8 bytes per name, and the next trie is the largest thing there is
    spellings = marisa_trie.Trie(spelling for _, folded, spelling in _names(index) if spelling != folded)
    return NameTable(
        names=names,
        spellings=spellings,
        offsets=offsets,
        entities=entities,
        **evidence,
        max_chars=shape.max_chars,
        first_marks="".join(sorted(c for c in shape.firsts if not (c.isalnum() or c == "_"))),
    )


class _Shape:
    """Facts of all names, gathered as they pass."""

    def __init__(self) -> None:
        self.max_chars = 0
        self.firsts: set[str] = set()
        self.words = WordCounts()

    def watch(self, names: Iterator[tuple[int, str, str]]) -> Iterator[str]:
        for _, folded, spelling in names:
            self.max_chars = max(self.max_chars, len(folded))
            self.firsts.add(folded[0])
            self.words.add(spelling)
            yield folded


def _names(index: Index) -> Iterator[tuple[int, str, str]]:
    """Yield entity number, folded name, and the name folded but for its case, of all titles and aliases."""
    for begin in range(0, index.num_entities, ENTITY_BATCH_ROWS):
        batch = index.entities.slice(begin, min(begin + ENTITY_BATCH_ROWS, index.num_entities))
        titles = batch.column(TITLE).to_pylist()
        aliases = batch.column(ALIASES).to_pylist() if ALIASES in batch.column_names else None
        for at, title in enumerate(titles):
            for name in (title, *aliases[at]) if aliases is not None and aliases[at] else (title,):
                spelling = fold_name(name, keep_case=True)
                folded = spelling.lower() if spelling.isascii() else fold_name(name)
                if folded:
                    yield begin + at, folded, spelling


def _postings(
    index: Index, names: marisa_trie.Trie, words: WordCounts, evidence: Evidence
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return keys and entities, ascending by both and without repetition, and weigh every name."""
    parts: list[npt.NDArray[np.int64]] = []
    pairs: list[int] = []
    for entity, folded, spelling in _names(index):
        key, found = names[folded], words.weigh(spelling)
        evidence["written"][key] |= (
            (AS_FOLDED if spelling == folded else 0)
            | (WITHOUT_CAPITALS if spelling == spelling.lower() else 0)
            | (CAPITAL_BY_CUSTOM if found.by_custom else 0)
        )
        evidence["small"][key] |= found.small
        for name in ("weight", "start", "part"):
            evidence[name][key] = max(evidence[name][key], getattr(found, name))
        pairs.append(key << 32 | entity)
        if len(pairs) == ENTITY_BATCH_ROWS:
            parts.append(np.array(pairs, dtype=np.int64))
            pairs.clear()
    parts.append(np.array(pairs, dtype=np.int64))
    every = np.concatenate(parts)
    parts.clear()
    every.sort()
    if len(every):
        every = every[np.concatenate(([True], every[1:] != every[:-1]))]
    return every >> 32, (every & 0xFFFFFFFF).astype(np.int32)


# A word with a capital where the name has one, or of a script without capitals.
CAPITAL = 5.0
# Number of words of a name for which it is known whether they may begin with a small letter.
MAX_SMALL_WORDS = 8
# The names' words are counted in a text with this many other words, among them each English stop word so many
# times. All words that are rarer than `_MAX_WORD` says weigh the same.
_OTHER_WORDS, _STOP_WORD_COUNT = 1_000_000, 5_000
_MAX_WORD = 9.0
# What the words of a name must outweigh. One long name costs less than the names inside it.
_NAME = -7.5
# The start of a sentence hides a small letter where the name has a capital.
_HIDDEN_SMALL = -5.0
# The share of small initials of a word inside names, and of a stop word, before any is counted; and how many
# words that stands for.
_SMALL_SHARE, _SMALL_SHARE_STOP, _SMALL_SHARE_COUNT = 0.1, 0.9, 5
_MAX_PART = 6.0
# Digits alone are looked for where at least this share of the names is digits.
_DIGITS_SHARE = 0.05
# Where a smaller share of the names begins with a small letter, a capital at the beginning says nothing.
_SMALL_NAMES_SHARE = 0.01
_PUNCTUATION = re.compile(r"[,():;/!?]")


class SpellingEvidence(NamedTuple):
    """The words of a catalogue as evidence about one spelling of a name."""

    weight: float  # how much likelier the name is than other words; -inf for numbers that are not looked for
    start: float  # addition for the capital of the first word at the start of a sentence
    part: float  # how much likelier a single word is part of a longer name than a name; 0 for several words
    small: int  # bit i is set where word i may begin with a small letter
    by_custom: bool  # whether the only capital is the one that the catalogue begins all names with


class WordCounts:
    """Counts the words of all names, in any letter case, then weighs each name."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        # By the number of a word: occurrences, those without another word up to the next punctuation, and
        # those behind the first word of a name with a small initial and with a capital.
        self._total, self._alone, self._small, self._capital = (array("L") for _ in range(4))
        self._share = array("d")  # of small initials, before any is counted
        self._num_words = self._num_names = self._num_digits = self._num_small_names = 0

    def add(self, name: str) -> None:
        """Count the words of a name, which is folded but for its letter case."""
        self._num_names += 1
        self._num_digits += name.isdecimal()
        self._num_small_names += name[0].islower()
        is_first = True
        for stretch in _PUNCTUATION.split(name):
            words = A_WORD.findall(stretch)
            for word in words:
                number = self._number(word.casefold())
                self._total[number] += 1
                if not is_first:
                    self._small[number] += word[0].islower()
                    self._capital[number] += word[0].isupper()
                is_first = False
            if len(words) == 1:
                self._alone[number] += 1
            self._num_words += len(words)

    def weigh(self, name: str) -> SpellingEvidence:
        """Return the evidence for a name that has been counted."""
        words = A_WORD.findall(name)
        if not words:
            return SpellingEvidence(_MAX_WORD + _NAME, CAPITAL, 0.0, 0, False)
        numbers = [self._numbers[word.casefold()] for word in words]
        first = numbers[0]
        small = sum(1 << i for i, word in enumerate(words[:MAX_SMALL_WORDS]) if word.islower())
        by_custom = len(words) > 1 and self._is_capital_by_custom(name, first)
        share = self._small_share(first)
        may_hide = len(words) > 1 and not (small & 1 or by_custom)
        return SpellingEvidence(
            weight=self._weight(name, numbers),
            start=(1 - share) * CAPITAL + (share * _HIDDEN_SMALL if may_hide else 0.0),
            part=self._part(first) if len(words) == 1 else 0.0,
            small=small | by_custom,
            by_custom=by_custom,
        )

    def _number(self, word: str) -> int:
        number = self._numbers.setdefault(word, len(self._total))
        if number == len(self._total):
            is_stop_word = word in ENGLISH_STOP_WORDS and (len(word) > 1 or word == "a")
            self._total.append(_STOP_WORD_COUNT if is_stop_word else 0)
            self._share.append(_SMALL_SHARE_STOP if is_stop_word else _SMALL_SHARE)
            for counts in (self._alone, self._small, self._capital):
                counts.append(0)
        return number

    def _weight(self, name: str, numbers: list[int]) -> float:
        if name.isdecimal() and self._num_digits < _DIGITS_SHARE * self._num_names:
            return -math.inf
        text = self._num_words + _OTHER_WORDS
        return _NAME + sum(min(_MAX_WORD, math.log(text / self._total[number])) for number in numbers)

    def _small_share(self, number: int) -> float:
        seen = self._small[number] + self._capital[number]
        return (self._small[number] + self._share[number] * _SMALL_SHARE_COUNT) / (seen + _SMALL_SHARE_COUNT)

    def _is_capital_by_custom(self, name: str, first: int) -> bool:
        """Whether a name is one of common words, capitalised as all names of the catalogue are."""
        return (
            self._num_small_names < _SMALL_NAMES_SHARE * self._num_names
            and name[0].isupper()
            and name[1:] == name[1:].lower()
            and self._small_share(first) > _SMALL_SHARE
        )

    def _part(self, number: int) -> float:
        return min(_MAX_PART, math.log((self._total[number] + 1) / (self._alone[number] + 0.5)))


_LOG = logging.getLogger(__name__)

_FORMAT = "genret-name-table"
# Folding depends on both, weights on the first, which is raised whenever an older table would differ.
_VERSION = f"2-unicode{unicodedata.unidata_version}"
_TABLE_FILE = "table.json"
_TRIES = ("names", "spellings")
_ARRAYS: dict[str, type[np.generic]] = {
    "offsets": np.int64,
    "entities": np.int32,
    **{name: kind for name, (kind, _) in EVIDENCE.items()},
}
_ATTEMPTS = 10
# No table takes this long to make.
_LEFTOVER_SECONDS = 24 * 3600


class _UnusableTableError(Exception):
    """The cache holds something that is not a table of this index; the text says why."""


def open_table(index: Index, cache_dir: Path) -> NameTable:
    """Return the table of an index, mapped from the cache; it is made where the cache has none.

    Several processes can do this at once: one of them makes the table, the others wait for it. A damaged or
    foreign table is made anew, and logged. A cache that cannot be read or written is a SourceError.
    """
    folder = cache_dir / f"names-{index.digest}-{_VERSION}"
    try:
        table = _read_or_complain(folder, index)
        if table is not None:
            return table
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _lock(cache_dir / f".{folder.name}.lock"):
            return _read_or_complain(folder, index) or _make(folder, index)
    except OSError as error:
        where = error.filename or cache_dir
        raise SourceError(f"table of names: {where}: {error.strerror or error}") from error


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    """Hold a lock while a table is made, so that it is made once; where there are no locks, do without."""
    lock = FileLock(file)
    try:
        lock.acquire()
    except NotImplementedError:
        _LOG.warning("table of names: %s cannot be locked; other processes may make the table, too", file)
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, index: Index) -> NameTable:
    for leftover in folder.parent.glob(f".{folder.name}-*"):  # of processes that were killed
        if time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(made, build_table(index), index.digest)
        for _ in range(_ATTEMPTS):
            try:
                made.rename(folder)
            except OSError:
                if not os.path.lexists(folder):
                    raise
                # What cannot be used, or the table of a process that did not see the lock.
                table = _read_or_complain(folder, index)
                if table is not None:
                    return table
                _remove(folder)
            else:
                return _read(folder, index)
        raise SourceError(f"table of names: {folder}: other processes keep replacing it")
    except _UnusableTableError as error:
        raise SourceError(f"table of names: {folder}: was written and cannot be read: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove the content of a table's place; processes that have mapped it keep it."""
    if folder.is_dir() and not folder.is_symlink():
        removed = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        folder.rename(removed)
        shutil.rmtree(removed)
    else:
        folder.unlink(missing_ok=True)


def _write(folder: Path, table: NameTable, digest: str) -> None:
    for name in _TRIES:
        getattr(table, name).save(str(folder / f"{name}.marisa"))
    for name in _ARRAYS:
        np.save(folder / f"{name}.npy", getattr(table, name), allow_pickle=False)
    files = {
        file.name: {"bytes": file.stat().st_size, "digest": digest_file(file)}
        for file in sorted(folder.iterdir())
    }
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "index_digest": digest,
        "max_chars": table.max_chars,
        "first_marks": table.first_marks,
        "files": files,
    }
    write_synced(folder / _TABLE_FILE, json.dumps(document, indent=1).encode())


def _read_or_complain(folder: Path, index: Index) -> NameTable | None:
    """Return a table, or None where there is none that can be used."""
    try:
        return _read(folder, index)
    except FileNotFoundError:
        if os.path.lexists(folder):
            _LOG.warning("table of names: %s is incomplete and is made anew", folder)
        return None
    except NotADirectoryError:
        _LOG.warning("table of names: %s is no folder and is made anew", folder)
        return None
    except _UnusableTableError as error:
        _LOG.warning("table of names: %s is made anew: %s", folder, error)
        return None


def _read(folder: Path, index: Index) -> NameTable:
    try:
        document = json.loads((folder / _TABLE_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _UnusableTableError(f"{_TABLE_FILE} is not valid JSON: {error}") from error
    _check(folder, document, index.digest)
    tries = {}
    for name in _TRIES:
        tries[name] = marisa_trie.Trie()
        try:
            tries[name].mmap(str(folder / f"{name}.marisa"))
        except RuntimeError as error:
            raise _UnusableTableError(f"{name}.marisa cannot be opened: {error}") from error
    arrays = {name: _map_array(folder / f"{name}.npy", dtype) for name, dtype in _ARRAYS.items()}
    num_names = len(tries["names"])
    if len(arrays["offsets"]) != num_names + 1 or any(len(arrays[name]) != num_names for name in EVIDENCE):
        raise _UnusableTableError(f"expected arrays for {num_names} names")
    return NameTable(**tries, **arrays, max_chars=document["max_chars"], first_marks=document["first_marks"])


def _check(folder: Path, document: Any, index_digest: str) -> None:
    """Compare table.json with the table asked for and with the files beside it."""
    wanted = {"format": _FORMAT, "version": _VERSION, "index_digest": index_digest}
    got = {name: document.get(name) for name in wanted} if isinstance(document, dict) else document
    if got != wanted:
        raise _UnusableTableError(f"expected {wanted}, got {got}")
    names = [f"{name}.marisa" for name in _TRIES] + [f"{name}.npy" for name in _ARRAYS]
    files = document.get("files")
    is_whole = (
        isinstance(document.get("max_chars"), int)
        and isinstance(document.get("first_marks"), str)
        and isinstance(files, dict)
    )
    if not is_whole or sorted(files) != sorted(names):
        raise _UnusableTableError(f"{_TABLE_FILE} is incomplete")
    for name in names:
        file = folder / name
        expected = files[name]
        found = {"bytes": file.stat().st_size, "digest": digest_file(file)}
        if found != expected:
            raise _UnusableTableError(f"{name}: expected {expected}, got {found}")


def _map_array(file: Path, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError as error:  # an array of nothing cannot be mapped
        if file.stat().st_size > 256:
            raise _UnusableTableError(f"{file.name} cannot be opened: {error}") from error
        array = np.load(file, allow_pickle=False)
    if array.dtype != dtype or array.ndim != 1:
        raise _UnusableTableError(f"{file.name}: expected one row of {np.dtype(dtype)}, got {array.dtype}")
    # A memmap takes thrice as long to read a number from.
    plain: np.ndarray[Any, Any] = array.view(np.ndarray)
    return plain
