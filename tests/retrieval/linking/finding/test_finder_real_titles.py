"""Real titles in real texts, against looking up every stretch in a dictionary."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter

import pytest

from genret.retrieval.linking.finding.find_options import FindOptions, load_stop_words
from genret.retrieval.linking.finding.finder import MentionFinder
from genret.retrieval.linking.finding.name_table import build_table
from tests.retrieval.linking.finding.name_oracle import NameIndex, Weights
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


def look_up(text: str, titles: list[str]) -> list[tuple[int, int, float, int]]:
    """Return (begin, end, odds, number of entities) of all titles between Python's word boundaries."""
    count = Counter(title.lower() for title in titles)
    weights = Weights(titles)
    value = {title.lower(): max(weights.of(title), 2**-10) for title in titles if not title.isdecimal()}
    longest = max(map(len, count))
    stop_words = load_stop_words("english")
    found = []
    for match in _WORD_BEGIN.finditer(text):
        begin = match.start()
        for end in range(min(len(text), begin + longest), begin + 1, -1):
            name = text[begin:end].lower()
            if name in value and name not in stop_words and not re.match(r"\w", text[end:]):
                found.append((begin, end, value[name], count[name]))
    return found


def test_the_finder_finds_the_best_of_what_a_dictionary_finds() -> None:
    # Letters and digits at both ends: \b knows no other names. Short, as texts have few others.
    titles = [t for t in wikipedia_titles() if t[0].isalnum() and t[-1].isalnum() and len(t) <= 20]
    titles = [t for t in titles if t.isascii()][::9]
    assert len(titles) > 40_000
    index = NameIndex([[title] for title in titles])
    options = FindOptions(case="insensitive")
    finder = MentionFinder(build_table(index), index, options)  # type: ignore[arg-type]
    text = "\n".join(texts())
    stretches = look_up(text.replace("\n", " "), titles)
    best = [0.0] * (len(text) + 1)  # up to every place
    ends: dict[int, list[tuple[int, float]]] = {}
    for begin, end, odds, _ in stretches:
        ends.setdefault(end, []).append((begin, odds))
    for at in range(1, len(text) + 1):
        best[at] = max([best[at - 1], *(best[begin] + odds for begin, odds in ends.get(at, ()))])
    known = {(begin, end, num): odds for begin, end, odds, num in stretches}
    found = finder.find(text)
    total = sum(known[span.start, span.end, span.num_names] for span in found)
    assert total == pytest.approx(best[-1])
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
