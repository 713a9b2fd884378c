from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from retrieval.index.summary import MAX_LINES, length_lines


@given(st.dictionaries(st.integers(1, 3000), st.integers(1, 10**9), min_size=1, max_size=300))
def test_every_row_is_in_one_of_few_lines(lengths: dict[int, int]) -> None:
    lines = length_lines(dict(sorted(lengths.items())), "#", 30)
    assert len(lines) <= MAX_LINES
    covered = dict.fromkeys(lengths, 0)
    for line in lines:
        found = re.fullmatch(r" *(\d+)(?:–(\d+))? +([\d,]+) (#{1,30})", line)
        assert found is not None, line
        begin, end = int(found[1]), int(found[2] or found[1])
        inside = [length for length in lengths if begin <= length <= end]
        assert int(found[3].replace(",", "")) == sum(lengths[length] for length in inside)
        for length in inside:
            covered[length] += 1
    assert set(covered.values()) == {1}


def test_few_lengths_have_a_line_each() -> None:
    assert length_lines({2: 4, 7: 2}, "#", 4) == ["        2            4 ####", "        7            2 ##"]
