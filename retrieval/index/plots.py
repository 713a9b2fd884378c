"""Draws the shape of an index: how long its rows are, how its trie branches, how much padding would cost.

It is computed from the manifest and one array of the trie. matplotlib (extra `plots`) is imported for
drawing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genret.decoding.trie.trie_arrays import IntArray
from genret.retrieval.errors import InputError, MissingExtraError
from genret.retrieval.index.layout import token_type
from genret.retrieval.index.manifest import Bucket
from genret.retrieval.index.reader import Index

FORMATS = ("png", "svg")
_FILE_STEM = "index-shape"

_INK = "#1f2937"
_GRID = "#dde1e6"
_SHADE = "#aeb7c2"
_MAIN = "#1b6ca8"  # told apart from _OTHER by lightness too, not by hue alone
_OTHER = "#e08a1e"
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class TrieDepth:
    """The trie nodes of one depth. Nodes below the first that holds a single row are not stored."""

    depth: int  # tokens written, 0 for the root
    nodes: int
    branching: int  # number of nodes with stored children: the root, and shared beginnings of rows
    median_children: float  # median over the branching nodes; 0 where there is none
    max_children: int  # most children of one of them


@dataclass(frozen=True, slots=True)
class Padding:
    """The bytes of the tokens of one bucket, as stored and in one matrix as wide as the longest row."""

    length: int
    rows: int
    bucket_bytes: int
    padded_bytes: int


@dataclass(frozen=True, slots=True)
class IndexShape:
    """The numbers behind the figure: a `TrieDepth` per depth, and a `Padding` per row length, ascending."""

    num_rows: int
    num_entities: int
    levels: tuple[TrieDepth, ...]
    paddings: tuple[Padding, ...]

    @classmethod
    def of(cls, index: Index) -> IndexShape:
        """Measure an open index. Passes over one array of the trie, a level at a time."""
        manifest = index.manifest
        item_bytes = token_type(manifest.tokenizer.vocab_size).bit_width // 8
        return cls(
            num_rows=index.num_rows,
            num_entities=index.num_entities,
            levels=tuple(trie_levels(index.trie_arrays().child_begin)),
            paddings=paddings(manifest.buckets, item_bytes),
        )

    @property
    def bucket_bytes(self) -> int:
        """Bytes of all tokens in their buckets."""
        return sum(padding.bucket_bytes for padding in self.paddings)

    @property
    def padded_bytes(self) -> int:
        """Bytes of all tokens in one padded matrix."""
        return sum(padding.padded_bytes for padding in self.paddings)


def trie_levels(child_begin: IntArray) -> Iterator[TrieDepth]:
    """Yield the levels of a trie whose nodes are numbered in level order.

    Children of node i are nodes child_begin[i] … child_begin[i + 1] - 1. Shape: (N + 1,).
    """
    begin, end, depth = 0, 1, 0
    while begin < end:
        children = np.diff(child_begin[begin : end + 1])
        branching = children[children > 0]
        yield TrieDepth(
            depth=depth,
            nodes=end - begin,
            branching=len(branching),
            median_children=float(np.median(branching)) if len(branching) else 0.0,
            max_children=int(children.max()),
        )
        begin, end, depth = end, int(child_begin[end]), depth + 1


def paddings(buckets: tuple[Bucket, ...], item_bytes: int) -> tuple[Padding, ...]:
    """Return the bytes of each bucket, ascending, of tokens of `item_bytes`."""
    widest = max((bucket.length for bucket in buckets), default=0)
    return tuple(
        Padding(b.length, b.rows, b.rows * b.length * item_bytes, b.rows * widest * item_bytes)
        for b in buckets
    )


def plot_files(target: Path) -> tuple[Path, ...]:
    """Return the files that drawing to `target` makes: itself, or one per format if it is a directory."""
    if target.is_dir() or not target.suffix:
        return tuple(target / f"{_FILE_STEM}.{name}" for name in FORMATS)
    if target.suffix.lower().removeprefix(".") not in FORMATS:
        raise InputError(
            "--plots", f"expected a directory or a file ending in .png or .svg, got {str(target)!r}"
        )
    return (target,)


def draw(index: Index, target: Path) -> tuple[Path, ...]:
    """Draw an index into a file ending in .png or .svg, or into a directory, which gets one of each.

    The same index and library versions give the same bytes. Returns the files written.

    Raises:
        InputError: `target` has another suffix, or cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    files = plot_files(target)
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    # The user's own settings would change the bytes; a fixed salt makes the names inside an SVG repeatable.
    settings = {**matplotlib.rcParamsDefault, "svg.hashsalt": _FILE_STEM}
    settings.pop("backend", None)  # a figure that is only saved needs none, and a change would close others
    with matplotlib.rc_context(settings):
        figure = _figure(IndexShape.of(index))
        for file in files:
            suffix = file.suffix.lower().removeprefix(".")
            stamp = {"Date": None} if suffix == "svg" else {"Software": None}
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(file, format=suffix, metadata=stamp, dpi=150)
            except OSError as error:
                raise InputError("--plots", f"{file}: cannot be written: {error.strerror}") from error
    return files


def _figure(shape: IndexShape) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 5.2), layout="constrained")
    lengths, fan_out, padding = figure.subplots(1, 3)
    _draw_lengths(lengths, shape)
    _draw_fan_out(fan_out, shape)
    _draw_padding(padding, shape)
    figure.suptitle(
        f"{shape.num_rows:,} rows of {shape.num_entities:,} entities", fontsize=14, color=_INK, weight="bold"
    )
    return figure


def _draw_lengths(axes: Any, shape: IndexShape) -> None:
    lengths = [padding.length for padding in shape.paddings]
    rows = [padding.rows for padding in shape.paddings]
    mean = sum(length * number for length, number in zip(lengths, rows, strict=True)) / max(sum(rows), 1)
    axes.bar(lengths, rows, width=0.85, color=_MAIN)
    axes.axvline(mean, color=_OTHER, linewidth=1.5, label=f"mean: {mean:.1f} tokens")
    axes.set_ylim(bottom=0.7)  # a single row must show
    _label(axes, "Rows per length", "tokens per row, end token included", "rows")


def _draw_fan_out(axes: Any, shape: IndexShape) -> None:
    depths = [level.depth for level in shape.levels]
    inner = [level for level in shape.levels if level.branching]
    at = [level.depth for level in inner]
    axes.bar(depths, [n.nodes for n in shape.levels], width=0.85, color=_GRID, label="stored nodes")
    axes.bar(at, [n.branching for n in inner], width=0.85, color=_SHADE, label="of them with children")
    axes.plot(at, [n.max_children for n in inner], "o-", color=_MAIN, ms=4, label="most children of a node")
    axes.plot(at, [n.median_children for n in inner], "s-", color=_OTHER, ms=4, label="median children")
    axes.set_ylim(bottom=0.7)
    _label(
        axes,
        "Fan-out per depth, until a row stands alone",
        "tokens written",
        "nodes; children per node that has any",
    )


def _draw_padding(axes: Any, shape: IndexShape) -> None:
    lengths = [padding.length for padding in shape.paddings]
    stored = [padding.bucket_bytes for padding in shape.paddings]
    padded = [padding.padded_bytes for padding in shape.paddings]
    axes.vlines(lengths, stored, padded, color=_SHADE, linewidth=2)
    axes.plot(lengths, padded, "o", color=_OTHER, ms=5, label=f"one matrix: {human(shape.padded_bytes)}")
    axes.plot(lengths, stored, "o", color=_MAIN, ms=5, label=f"buckets: {human(shape.bucket_bytes)}")
    empty = 1 - shape.bucket_bytes / max(shape.padded_bytes, 1)
    title = f"Padding: {empty:.0%} of one matrix for all rows"
    _label(axes, title, "tokens per row, end token included", "bytes of all tokens of this length")
    axes.yaxis.set_major_formatter(lambda value, _: human(value))  # the scale has its own


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_yscale("log")
    axes.legend(frameon=False)
    axes.set_title(title, color=_INK)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def human(num_bytes: float) -> str:
    """Return a size for an axis: at most three digits and a decimal unit."""
    power = 0
    while num_bytes >= 999.5 and power < len(_UNITS) - 1:
        num_bytes, power = num_bytes / 1000, power + 1
    return f"{num_bytes:.3g} {_UNITS[power]}"
