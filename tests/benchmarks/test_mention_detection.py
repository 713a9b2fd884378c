"""`benchmarks/mention_detection.py`: documents are put together again, and mentions in them are counted."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared_titles import shared_file

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "mention_detection.py"
TEXT = " ".join(f"Sentence {number} is about Red Sea {number}." for number in range(60))


@pytest.mark.usefixtures("benchmark_path")
def test_base_names() -> None:
    from harness.labelled_mentions import base_name

    names = ("Mercury (planet)", "Cairo, Illinois", "Cairo", "A (b) c", "C++ (language) (x)")
    assert [base_name(name) for name in names] == ["Mercury", "Cairo", None, None, "C++ (language)"]


@pytest.mark.usefixtures("benchmark_path")
def test_windows_are_put_together_to_documents(tmp_path: Path) -> None:
    from harness.labelled_mentions import LabelledSpan, read_documents

    rows = []
    starts = [TEXT.index(f"Red Sea {number}.") for number in (0, 7, 22, 15, 59)]
    for start in starts:
        left, right = TEXT[max(0, start - 250) : start], TEXT[start + 7 : start + 257]
        rows.append({"doc": "d", "left": left, "mention": "Red Sea", "right": right, "title": "Red Sea"})
    rows.append({"doc": "e", "left": "", "mention": "US", "right": "", "title": None, "nil": True})
    file = tmp_path / "x.dev.jsonl.gz"
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    documents = read_documents(file)
    assert [document.doc_id for document in documents] == ["d", "d", "e"]  # between 22 and 59 text is missing
    assert sorted(len(document.spans) for document in documents) == [1, 1, 4]
    for document in documents[:2]:
        assert document.text in TEXT
        assert all(document.text[s.start : s.end] == "Red Sea" for s in document.spans)
    assert documents[2].spans == (LabelledSpan(0, 2, None),)


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_script_compares_both_ways(tmp_path: Path) -> None:
    data, file = shared_file("el", "lgl.dev.jsonl.gz").parents[1], tmp_path / "figures.json"
    options = ["--data", str(data), "--work", str(tmp_path), "--set", "lgl", "--json", str(file)]
    subprocess.run([sys.executable, str(SCRIPT), *options], check=True, capture_output=True)
    figures = json.loads(file.read_text())["figures"]["sets"]["lgl"]
    assert figures["linked"] == 308
    for way in ("longest from the left", "likeliest"):
        assert figures[way]["recalled"] + sum(figures[way]["lost"].values()) == 308
        assert figures[way]["recalled"] > 250
