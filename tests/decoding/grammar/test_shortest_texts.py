"""The shortest of a run of texts, whole blocks of them included."""

from __future__ import annotations

import random

import pytest

from decoding.grammar.holes import text_leaf as shortest
from decoding.grammar.holes.text_leaf import ShortestTexts
from decoding.grammar.holes.text_places import spelled
from decoding.sorted_texts import SortedTexts


def brute(texts: list[bytes], begin: int, end: int, depth: int) -> bytes:
    return min((spelled(text[depth:]) for text in texts[begin:end]), key=lambda text: (len(text), text))


@pytest.mark.parametrize("longest", [shortest._LONGEST, 3])
def test_runs_of_many_blocks(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortest, "_LONGEST", longest)
    rng = random.Random(0)
    for alphabet in ("ab", 'a"\\', '"\x01', "\x00\x01\n"):
        texts = sorted("".join(rng.choices(alphabet, k=rng.randint(2, 9))).encode() for _ in range(700))
        found = ShortestTexts(SortedTexts.of(texts))
        for _ in range(150):
            begin, end = sorted(rng.sample(range(len(texts) + 1), 2))
            assert found.spelling(begin, end, 0) == brute(texts, begin, end, 0)
            assert found.spelling(begin, end, 2) == brute(texts, begin, end, 2)
        for begin, end in ((0, 700), (64, 128), (63, 129), (70, 100), (0, 64), (640, 700)):
            assert found.spelling(begin, end, 1) == brute(texts, begin, end, 1)


def test_no_run() -> None:
    with pytest.raises(ValueError, match=r"expected a run of texts, got \[0, 0\)"):
        ShortestTexts(SortedTexts.of([b"a"])).spelling(0, 0, 0)
