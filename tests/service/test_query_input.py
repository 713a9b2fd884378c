"""Queries from standard input: answered as they arrive, and what cannot be read is named."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

import click
import pytest

from genret.service.commands.query_options import BATCH_ID_BYTES, BATCH_ITEMS, arrivals, batches, most_items


class Pipe(io.BytesIO):
    """Gives one piece per read, as a pipe whose writer pauses does."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        super().__init__()
        self.pieces = list(pieces)

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def flat(batches: Iterable[list[str]]) -> list[str]:
    return [text for batch in batches for text in batch]


def test_a_line_is_answered_before_the_next_one_is_there() -> None:
    pipe = Pipe([b"first\nsec", b"ond\n", b"third"])
    arriving = arrivals(pipe)
    assert next(arriving) == ["first"]
    assert len(pipe.pieces) == 2, "nothing more was read"
    assert flat(arriving) == ["second", "third"]


def test_blank_lines_a_byte_order_mark_and_windows_ends_are_no_part_of_queries() -> None:
    pipe = Pipe([b"\xef\xbb\xbfone\r\n\r\n  \n", "zwölf \n".encode()])
    assert flat(arrivals(pipe)) == ["one", "zwölf"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_characters_may_be_cut_by_pieces(cut: int) -> None:
    raw = "añb\n日本\nx".encode()
    assert flat(arrivals(Pipe([raw[:cut], raw[cut:]]))) == ["añb", "日本", "x"]


def test_what_is_not_utf8_is_named_after_the_lines_before_it() -> None:
    arriving = arrivals(Pipe([b"a\n\nb\n", b"c\n\xff\xfe\nd\n"]))
    assert next(arriving) == ["a", "b"]
    assert next(arriving) == ["c"]
    with pytest.raises(click.ClickException, match="standard input, line 5: not valid UTF-8"):
        next(arriving)


def test_a_last_line_that_is_not_utf8_is_named_too() -> None:
    with pytest.raises(click.ClickException, match="standard input, line 2: not valid UTF-8"):
        flat(arrivals(Pipe([b"a\n\xc3"])))


def test_calls_are_of_bounded_size_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"line {i}" for i in range(150)]
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    calls = list(batches(["one", "two", "-", "last"]))
    assert calls[0] == ["one", "two"]
    assert calls[-1] == ["last"]
    assert max(map(len, calls)) == BATCH_ITEMS
    assert flat(calls) == ["one", "two", *lines, "last"]


def test_long_lists_of_ids_make_short_calls() -> None:
    assert most_items((), ()) == BATCH_ITEMS
    assert most_items(["é" * 98] * 100, ["x" * 196] * 100) == BATCH_ID_BYTES // (2 * 100 * 200)
    assert most_items(["x" * 100] * 100_000) == 1
    assert [len(batch) for batch in batches(["q"] * 5, most=2)] == [2, 2, 1]
