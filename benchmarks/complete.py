"""Completion of typed prefixes: CPU time by letters, memory, and SQLite's FTS5 beside.

    python benchmarks/complete.py --titles 'titles/*.parquet' --json complete.json
    python benchmarks/complete.py --titles 'titles/*.parquet' --twins --json complete.json

With `--twins` every title also has a twin: its first half, and the second half of another title, with a
letter changed in every tenth word. Titles are drawn, cut to so many letters and, where "mistyped", one letter
is left out, put in, replaced or swapped with its neighbour. "next" is a keystroke: the prefix without its
last letter was asked before, so its other words are remembered; "cold" remembers nothing. FTS5 has the titles
in the same order, with indexes of prefixes, and gets the same words, the last as a prefix; it forgives none.
"""

from __future__ import annotations

import glob
import random
import sqlite3
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness.report import COUNT, benchmark, percentiles, shown

from genret.retrieval.completion.completer import Completer, _Found, _typed_words
from genret.retrieval.completion.name_lists import NameLists
from genret.retrieval.completion.typing_errors import automaton
from genret.retrieval.evidence.postings import fold_all

_SEED, _K, _AT_ONCE = 1, 10, 16_384
_LETTERS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 30)


@benchmark("numpy", "pyarrow")
@click.option("--titles", required=True, help="Parquet files with a column `title`; may have *.")
@click.option("--twins", is_flag=True, help="Add a twin of every title.")
@click.option("--queries", type=COUNT, default=1000, show_default=True, help="Titles drawn.")
@click.option("--peer/--no-peer", default=True, show_default=True, help="Ask FTS5 too.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure completion."""
    names = _names(options.titles, options.twins)
    begun = time.process_time()
    table = NameLists(_batches(names), None)
    seconds = time.process_time() - begun
    size = {"bytes_per_name": table.num_bytes / len(table), "seconds": seconds}
    built = shown("table", {"names": len(table), "words": table.vocabulary.size, **size})
    completer = Completer(None)  # type: ignore[arg-type]  # names are found, their texts are not read
    completer._table = table
    for errors in (1, 2):
        automaton(errors)  # made once in a process
    fts = _fts(names, table) if options.peer else None
    chance = random.Random(_SEED)
    drawn = [names[chance.randrange(len(names))].as_py() for _ in range(options.queries)]
    rows = {}
    for letters in _LETTERS:
        typed = [title[:letters] for title in drawn if len(title) >= letters]
        kinds = {
            "typed": typed,
            "mistyped": [mistyped(text, chance) for text in typed] if letters > 2 else [],
        }
        rows[letters] = {"titles": len(typed)}
        for kind, texts in kinds.items():
            rows[letters] |= {f"{kind} cold": _times(texts, completer, is_cold=True)}
            rows[letters] |= {f"{kind} next": _times(texts, completer, is_cold=False)}
        if fts is not None:
            rows[letters]["fts5 typed"] = _fts_times(typed, fts)
        shown(f"{letters} letters", rows[letters])
    return {"table": built, "ms": rows}


def _times(texts: list[str], completer: Completer, is_cold: bool) -> dict[str, float]:
    """Return percentiles of CPU milliseconds."""
    taken = []
    for text in texts:
        completer._matches.clear()
        if not is_cold and len(text) > 1:
            _find(text[:-1], completer)
        taken.append(_find(text, completer))
    return percentiles(taken, 50, 99, 100)


def _find(text: str, completer: Completer) -> float:
    begun = time.process_time()
    completer._find(_typed_words(text), _Found(completer.table.owner, _K, None))
    return (time.process_time() - begun) * 1e3


def _fts_times(texts: list[str], fts: sqlite3.Connection) -> dict[str, float]:
    taken = []
    for text in texts:
        words = fold_all([text])[0].split()
        if not "".join(words).isalnum():  # FTS5 would make several words of one
            continue
        query = " ".join('"' + word.replace('"', '""') + '"' for word in words) + "*"
        begun = time.process_time()
        fts.execute("select rowid from names where names match ? limit ?", (query, _K)).fetchall()
        taken.append((time.process_time() - begun) * 1e3)
    return percentiles(taken, 50, 99, 100)


def _names(pattern: str, twins: bool) -> pa.Array:
    parts = [pq.read_table(file, columns=["title"])["title"] for file in sorted(glob.glob(pattern))]
    titles = pa.concat_arrays([chunk.cast(pa.string()) for part in parts for chunk in part.chunks]).unique()
    if not twins:
        return titles
    chance = random.Random(_SEED)
    made = []
    for begin in range(0, len(titles), _AT_ONCE):
        some = [title.split(" ") for title in titles[begin : begin + _AT_ONCE].to_pylist()]
        for words in some:
            other = some[chance.randrange(len(some))]
            twin = words[: (len(words) + 1) // 2] + other[len(other) // 2 :]
            made.append(" ".join(_changed(word, chance) if chance.random() < 0.1 else word for word in twin))
    return pa.concat_arrays([titles, pa.array(made, pa.string())])


def _changed(word: str, chance: random.Random) -> str:
    at = chance.randrange(len(word)) if word else 0
    return word[:at] + chance.choice("aeinorst") + word[at + 1 :]


def _batches(names: pa.Array) -> Iterator[tuple[np.ndarray, list[str]]]:
    for begin in range(0, len(names), _AT_ONCE):
        texts = names[begin : begin + _AT_ONCE].to_pylist()
        yield np.arange(begin, begin + len(texts)), texts


def _fts(names: pa.Array, table: NameLists) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.execute("create virtual table names using fts5(name, content='', detail=none, prefix='1 2 3 4')")
    ordered = names.take(pa.array(table.owner))
    begun = time.process_time()
    done = 0
    for _, texts in _batches(ordered):
        rows = enumerate(fold_all(texts), start=done + 1)
        database.executemany("insert into names(rowid, name) values (?, ?)", rows)
        done += len(texts)
    (pages,) = database.execute("pragma page_count").fetchone()
    (page,) = database.execute("pragma page_size").fetchone()
    size = {"bytes_per_name": pages * page / done, "seconds": time.process_time() - begun}
    shown("fts5", size)
    return database


def mistyped(text: str, chance: random.Random) -> str:
    """Return a text with one typing error."""
    at = chance.randrange(len(text))
    letter = chance.choice("abcdefghijklmnopqrstuvwxyz")
    kind = chance.randrange(4)
    if kind == 3:
        return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
    return text[:at] + ("" if kind == 0 else letter) + text[at + (kind != 1) :]


if __name__ == "__main__":
    main()
