"""What makes two restrictions the same filter, and lists of ids in arguments and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.errors import InputError, SourceError
from retrieval.filters.predicate import parse
from retrieval.filters.restriction import MAX_IDS, Restriction, checked_ids, read_ids


def test_what_says_the_same_has_one_key() -> None:
    one = Restriction(parse("b = 1 AND a == 'x'"), ("Q1", "Q2"), ("Q3", "Q3"))
    other = Restriction(parse("a='x' and (b=1)"), ("Q2", "Q1", "Q2"), ("Q3",))
    assert one.key() == other.key()


def test_what_differs_has_another_key() -> None:
    restrictions = [
        Restriction(),
        Restriction(allow_ids=()),
        Restriction(allow_ids=("a", "bc")),
        Restriction(allow_ids=("ab", "c")),
        Restriction(allow_ids=("abc",)),
        Restriction(deny_ids=("abc",)),
        Restriction(parse("a")),
        Restriction(parse('"A"')),
        Restriction(parse("a = '1'")),
        Restriction(parse("a = 1")),
    ]
    assert len({restriction.key() for restriction in restrictions}) == len(restrictions)


def test_no_list_is_open_and_an_empty_one_is_not() -> None:
    assert Restriction().is_open
    assert not Restriction(allow_ids=()).is_open
    assert not Restriction(deny_ids=("a",)).is_open
    assert not Restriction(parse("true")).is_open


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("Q1", "allow_ids: must be a sequence of ids, got str"),
        (3, "allow_ids: must be a sequence of ids, got int"),
        (["Q1", 2], r"allow_ids\[1\]: must be text, got int"),
        (["Q1", "\ud800"], r"allow_ids\[1\]: not valid Unicode: half a surrogate pair"),
        (["Q1"] * (MAX_IDS + 1), "allow_ids: at most 100,000 ids, got 100,001"),
    ],
)
def test_lists_that_are_none(ids: object, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        checked_ids("allow_ids", ids)


def test_any_iterable_of_texts_is_a_list() -> None:
    assert checked_ids("deny_ids", (f"Q{n}" for n in range(3))) == ("Q0", "Q1", "Q2")
    assert len(checked_ids("deny_ids", ["é"] * MAX_IDS)) == MAX_IDS


def test_a_file_has_one_id_per_line(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_bytes("\ufeffQ1\r\n\r\n  Q 2 \nähm".encode())
    assert read_ids(file) == ("Q1", "Q 2", "ähm")


def test_files_that_are_no_lists(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    with pytest.raises(SourceError, match=r"ids\.txt: cannot be read: No such file"):
        read_ids(file)
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):
        read_ids(tmp_path)
    file.write_bytes(b"Q1\n\xff\n")
    with pytest.raises(SourceError, match=r"ids\.txt, line 2: not valid UTF-8"):
        read_ids(file)
    file.write_bytes(b"x\n" * (MAX_IDS + 1))
    with pytest.raises(SourceError, match=r"ids\.txt, line 100001: more than 100,000 ids"):
        read_ids(file)
