"""Real titles in real texts, against looking up every stretch in a dictionary."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from retrieval.linking.finding.mention_finder import MentionFinder
from retrieval.linking.finding.options import FindOptions
from retrieval.linking.finding.stop_words import load_stop_words
from retrieval.linking.finding.table_building import build_table
from tests.retrieval.linking.finding.name_oracle import NameIndex
from tests.shared_titles import shared_file, wikipedia_titles

pytestmark = pytest.mark.shared_data
SETS = ("conel22", "geovirus", "lgl", "msnbc", "reuters128", "news_fair_v2", "rss500")
_WORD_BEGIN = re.compile(r"\b(?=\w)")


def texts() -> list[str]:
    """Texts in ASCII with single blanks: what has to be folded is for other tests."""
    found = []
    for name in SETS:
        with gzip.open(shared_file("el", f"{name}.dev.jsonl.gz"), "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        found += [row["left"] + row["mention"] + row["right"] for row in rows[:40]]
    return [" ".join(text.encode("ascii", "ignore").decode().split()) for text in found]


def look_up(text: str, titles: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, number of entities) of what a dictionary and Python's word boundaries find."""
    count = Counter(title.lower() for title in titles)
    lower = {title for title in titles if title == title.lower()}
    longest = max(map(len, count))
    stop_words = load_stop_words("english")
    at = 0
    for match in _WORD_BEGIN.finditer(text):
        if (begin := match.start()) < at:
            continue
        for end in range(min(len(text), begin + longest), begin + 1, -1):
            name = text[begin:end].lower()
            if name not in count or name in stop_words or re.match(r"\w", text[end:]):
                continue
            if re.search(r"[A-Z0-9]", re.sub(r"\bI\b", "", text[begin:end])) or name in lower:
                yield begin, end, count[name]
                at = end
                break


def test_the_finder_finds_what_a_dictionary_finds() -> None:
    # Letters and digits at both ends: \b knows no other names. Short, as texts have few others.
    titles = [t for t in wikipedia_titles() if t[0].isalnum() and t[-1].isalnum() and len(t) <= 20]
    titles = [t for t in titles if t.isascii()][::9]
    assert len(titles) > 40_000
    index = NameIndex([[title] for title in titles])
    finder = MentionFinder(build_table(index), index, FindOptions())  # type: ignore[arg-type]
    text = "\n".join(texts())
    found = [(span.start, span.end, span.num_names) for span in finder.find(text)]
    assert found == list(look_up(text.replace("\n", " "), titles))
    assert len(found) > 300


def test_titles_are_found_in_their_own_letters() -> None:
    titles = wikipedia_titles()[::50]
    index = NameIndex([[title] for title in titles])
    options = FindOptions(case="sensitive", min_chars=1, max_entities=None, stop_words="none")
    finder = MentionFinder(build_table(index), index, options)  # type: ignore[arg-type]
    text = "\n\n".join(titles)
    at = 0
    spans = {(span.start, span.end) for span in finder.find(text)}
    for title in titles:
        assert (at, at + len(title)) in spans, title
        at += len(title) + 2
