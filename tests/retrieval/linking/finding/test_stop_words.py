from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.errors import SourceError
from retrieval.linking.finding.find_options import load_stop_words
from retrieval.linking.finding.folding import fold_name


def test_the_english_list_is_folded_words() -> None:
    words = load_stop_words("english")
    assert {"the", "of", "it", "who", "s", "t"} <= words
    assert all(word == fold_name(word) and word.isalpha() for word in words)
    assert not words & {"us", "america", "paris", "apple"}


def test_none_is_an_empty_list() -> None:
    assert load_stop_words("none") == frozenset()


def test_a_file_has_one_word_per_line(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes("\ufeffDer\r\n\r\n  Die \nStraße\nL’\nzum  Beispiel".encode())
    assert load_stop_words(str(file)) == {"der", "die", "strasse", "l'", "zum beispiel"}


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"stop words: .*missing\.txt: cannot be read: No such file"):
        load_stop_words(str(tmp_path / "missing.txt"))
    with pytest.raises(SourceError, match=r"cannot be read: Is a directory"):
        load_stop_words(str(tmp_path))
    file = tmp_path / "words.txt"
    file.write_bytes(b"der\nstra\xdfe\n")
    with pytest.raises(SourceError, match=r"words\.txt, line 2: not valid UTF-8"):
        load_stop_words(str(file))
    with file.open("r+b") as opened:
        opened.truncate((16 << 20) + 1)
    with pytest.raises(SourceError, match="expected at most 16 MiB"):
        load_stop_words(str(file))
