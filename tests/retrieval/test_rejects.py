from __future__ import annotations

import json
from pathlib import Path

import pytest

from genret.retrieval.errors import SourceError
from genret.retrieval.sources.rejects import Reject, RejectReason, Rejects


def test_one_file_is_not_named_again_and_several_are() -> None:
    one = Rejects("a.tsv", 0, files=("a.tsv",))
    one.add(3, RejectReason.NO_TITLE, "x\t")
    assert one.report() == "a.tsv: 1 bad row (allowed: 0): 1 × no title\n  line 3: no title: 'x\\t'"
    several = Rejects("a.tsv and 1 more file", 0, files=("a.tsv", "b.tsv"))
    several.add(2, RejectReason.BAD_JSON, b"{\xff", "an end", file=1)
    several.add(9, RejectReason.NO_TITLE, "", file=0)
    assert several.report().splitlines()[1:] == [
        "  a.tsv, line 9: no title: ''",
        "  b.tsv, line 2: bad JSON (an end): '{\\xff'",
    ]


def test_rejects_survive_a_journal() -> None:
    rejects = Rejects("c", 10)
    rejects.add(4, RejectReason.UNKNOWN_ENTITY, "é", "title 'x'", file=2)
    rejects.add(5, RejectReason.BAD_VALUE, "y")
    again = [Reject.from_json(json.loads(json.dumps(row.to_json()))) for row in rejects.rows]
    assert again == rejects.rows
    with pytest.raises(ValueError, match="no such reason"):
        Reject.from_json([0, 1, "no such reason", "", ""])


def test_the_file_of_bad_rows_is_a_table(tmp_path: Path) -> None:
    rejects = Rejects("c", 10, files=("a.tsv", "b.tsv"))
    rejects.add(5, RejectReason.BAD_VALUE, "y\tz", "got 'a\tb'", file=1)
    rejects.add(7, RejectReason.NO_TITLE, "", file=0)
    rejects.write(tmp_path / "rejects.tsv")
    assert (tmp_path / "rejects.tsv").read_text() == (
        "file\tline\treason\tdetail\ttext\n"
        "a.tsv\t7\tno title\t\t''\nb.tsv\t5\tbad value\tgot 'a b'\t'y\\tz'\n"
    )
    Rejects("c", 10).write(tmp_path / "rejects.tsv")
    assert not (tmp_path / "rejects.tsv").exists()


def test_the_limit() -> None:
    rejects = Rejects("c", 1)
    rejects.add(1, RejectReason.NO_TITLE, "")
    rejects.check()
    rejects.add(2, RejectReason.NO_TITLE, "")
    with pytest.raises(SourceError, match="--max-bad-rows 2"):
        rejects.check()
