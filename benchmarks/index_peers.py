"""The trie of an index against a trie of nested dictionaries and marisa-trie, from the same token ids.

    python benchmarks/index_peers.py                                   # 907,150 titles of English Wikipedia
    python benchmarks/index_peers.py --titles six_million.parquet      # the dictionaries take about 7 GB

The titles are tokenised once and shuffled. Then every contestant builds its structure from the ids in a
process of its own, on one core, in turn, several times over. Garbage collection is off, which favours the
dictionaries. Memory is what the structure adds to the resident memory of the process: held once it is built,
and at the peak on the way. The saved size is that of the arrays, of the pickled dictionaries, and of marisa's
own file, which compresses and is the smallest by far.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
from harness.dictionary_trie import nested_dictionaries, row_lists
from harness.processes import measured, memory_bytes
from harness.report import COUNT, Spread, benchmark, shown
from harness.timing import in_turn
from harness.titles import chosen_titles, input_options, tokenizer_file

from genret.decoding.trie.trie_arrays import TrieArrays, derive_trie
from genret.index_builder.runs import IntArray, gather_rows, sort_rows
from genret.retrieval.index.layout import token_type
from genret.retrieval.text import Rendering, TextTokenizer

_FIGURES = ("build_s", "held_bytes", "peak_bytes", "saved_bytes")
_CHUNK = 100_000
_CONTEND = "contend"  # first argument of a contestant's process
_FIRST_SURROGATE, _SURROGATES = 0xD800, 0x800


@benchmark("numpy", "marisa-trie", "tokenizers")
@input_options
@click.option("--repeats", type=COUNT, default=5, help="Rounds; in each, everyone in turn.")
@click.option(
    "--dict-titles",
    type=COUNT,
    show_default="all",
    help="Give the dictionaries only so many titles, if memory is short. Nothing is extrapolated; ratios to "
    "them are then left out.",
)
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Build three tries from the same token ids and compare time, memory and size."""
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        number = tokenise(options, Path(folder))
        sizes = dict.fromkeys(_BUILDERS, number)
        sizes["dictionaries"] = min(options.dict_titles or number, number)
        calls = {name: partial(_in_a_process, name, Path(folder), sizes[name]) for name in _BUILDERS}
        taken = in_turn(calls, options.repeats, warm_up=0)
    return summarise({name: [took.value for took in column] for name, column in taken.items()}, sizes)


def tokenise(options: SimpleNamespace, folder: Path) -> int:
    """Write the rows of all titles and return their number.

    They are shuffled: in the order of the alphabet, which lists of titles often have, neighbours share their
    prefixes, and whoever inserts them one by one finds the path still in the processor's cache.
    """
    model = TextTokenizer.load(tokenizer_file(options))
    dtype = token_type(model.vocab_size).to_pandas_dtype()
    lengths: list[IntArray] = []
    parts: list[IntArray] = []
    for batch in chosen_titles(options):
        rows = [row for row in model.encode_titles(batch, Rendering()) if row is not None]
        lengths.append(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
        parts.append(np.fromiter((token for row in rows for token in row), dtype=dtype))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    order = np.random.default_rng(0).permutation(len(offsets) - 1)
    tokens, offsets = gather_rows(np.concatenate(parts), offsets, order)
    tokens.tofile(folder / "tokens")
    np.save(folder / "offsets.npy", offsets)
    (folder / "about.json").write_text(json.dumps({"vocab_size": model.vocab_size}))
    click.echo(f"{len(offsets) - 1:,} titles, {offsets[-1] / (len(offsets) - 1):.2f} tokens each")
    return len(offsets) - 1


def contend(name: str, folder: Path, limit: int) -> dict[str, float]:
    """Build one contestant's structure and return its figures. Runs in a process of its own."""
    offsets = np.load(folder / "offsets.npy")[: limit + 1]
    vocab_size = json.loads((folder / "about.json").read_text())["vocab_size"]
    dtype = token_type(vocab_size).to_pandas_dtype()
    tokens = np.fromfile(folder / "tokens", dtype=dtype, count=int(offsets[-1]))
    build, save = _BUILDERS[name]
    if name == "marisa-trie":
        import marisa_trie  # noqa: F401  # not part of what it takes
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gc.collect()
    gc.disable()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before, begun = memory_bytes("VmRSS"), time.perf_counter()
    structure = build(tokens, offsets, vocab_size)
    seconds, peak = time.perf_counter() - begun, memory_bytes("VmHWM")
    # Freed memory that the allocator keeps for later is not part of the structure.
    ctypes.CDLL(None).malloc_trim(0)
    held = memory_bytes("VmRSS") - before
    file = folder / f"saved-{os.getpid()}"
    save(structure, file)
    saved = file.stat().st_size
    file.unlink()
    return {"build_s": seconds, "held_bytes": held, "peak_bytes": peak - before, "saved_bytes": saved}


def _build_ours(tokens: IntArray, offsets: IntArray, vocab_size: int) -> TrieArrays:
    order, first = sort_rows(tokens, offsets, vocab_size)
    return derive_trie(*gather_rows(tokens, offsets, order[first]))


def _build_dictionaries(tokens: IntArray, offsets: IntArray, vocab_size: int) -> dict[int, Any]:
    return nested_dictionaries(row_lists(tokens, offsets))


def _build_marisa(tokens: IntArray, offsets: IntArray, vocab_size: int) -> Any:
    import marisa_trie

    return marisa_trie.Trie(_strings(tokens, offsets))


def _strings(tokens: IntArray, offsets: IntArray) -> Iterator[str]:
    """Yield rows as strings, a token a character: there are no surrogates among them and no NUL."""
    for begin in range(0, len(offsets) - 1, _CHUNK):
        ends = offsets[begin : begin + _CHUNK + 1].tolist()
        points = tokens[ends[0] : ends[-1]].astype(np.uint32) + 1
        points[points >= _FIRST_SURROGATE] += _SURROGATES
        text = points.tobytes().decode("utf-32-le" if sys.byteorder == "little" else "utf-32-be")
        for a, b in itertools.pairwise(ends):
            yield text[a - ends[0] : b - ends[0]]


def _save_ours(trie: TrieArrays, file: Path) -> None:
    with file.open("wb") as out:
        for array in trie:
            if isinstance(array, np.ndarray):
                out.write(array.tobytes())


def _save_dictionaries(root: dict[int, Any], file: Path) -> None:
    with file.open("wb") as out:
        pickler = pickle.Pickler(out, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.fast = True  # no table of what was seen: nothing occurs twice, and it would take gigabytes
        sys.setrecursionlimit(100_000)
        pickler.dump(root)


# name -> building the structure, and saving it.
_BUILDERS: dict[str, tuple[Callable[[IntArray, IntArray, int], Any], Callable[[Any, Path], None]]] = {
    "ours": (_build_ours, _save_ours),
    "dictionaries": (_build_dictionaries, _save_dictionaries),
    "marisa-trie": (_build_marisa, lambda trie, file: trie.save(str(file))),
}


def summarise(rounds: dict[str, list[dict[str, float]]], sizes: dict[str, int]) -> dict[str, Any]:
    """Print medians and the ratios to ours round by round; return them."""
    figures: dict[str, Any] = {}
    for name, results in rounds.items():
        entry: dict[str, Any] = {"titles": sizes[name]}
        for figure in _FIGURES:
            values = [result[figure] for result in results]
            entry[figure] = Spread.of(values)
            if figure != "build_s":
                entry[f"{figure}_per_title"] = entry[figure].median / sizes[name]
            if name != "ours" and sizes[name] == sizes["ours"]:
                ours = [result[figure] for result in rounds["ours"]]
                entry[f"{figure}_ratio_to_ours"] = Spread.of_ratios(values, ours)
        figures[name] = entry
    return shown("tries", figures)


def _in_a_process(name: str, folder: Path, limit: int) -> dict[str, float]:
    command = [sys.executable, __file__, _CONTEND, name, str(folder), str(limit)]
    figures: dict[str, float] = json.loads(measured(command, {"OMP_NUM_THREADS": "1"}).stdout)
    return figures


if __name__ == "__main__":
    if _CONTEND in sys.argv[1:2]:
        print(json.dumps(contend(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
    else:
        main()
