"""The tables of docs/ranking.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from retrieval.evidence.evidence import FEATURES, QUERIES, TEXTS
from retrieval.ranking.fitting import MIN_ENTITIES
from retrieval.ranking.made_queries import NAME_RECIPES, NUM_QUERIES, SOURCES, num_queries
from retrieval.ranking.ranker import PROPOSALS
from retrieval.ranking.rankings import UNWEIGHED_MODEL
from retrieval.ranking.tuned_ranking import METRICS
from retrieval.types import DEFAULT_AUTO_SIZE, DEFAULT_NUM_RANKED

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "ranking.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def test_the_table_of_features_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([a-z]+\.[a-z]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    told = [(str(feature), feature.meaning.replace("|", r"\|")) for feature in FEATURES]
    assert rows == [(name, meaning) for name, meaning in told if not name.endswith("_long")]


def test_every_feature_of_names_stands_there_a_second_time() -> None:
    names = [feature.name for feature in FEATURES if feature.kind == "names"]
    plain = [name for name in names if not name.endswith("_long")]
    assert names == [*plain, *(f"{name}_long" for name in plain)]


def test_shares_of_made_queries_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([^|`]*) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert rows == [(name, str(share)) for name, share, _ in NAME_RECIPES]
    assert f"{SOURCES[QUERIES]:.0%}".replace("%", " %") + " of them are past queries" in TEXT
    assert f"{SOURCES[TEXTS]:.0%}".replace("%", " %") + " are parts of texts" in TEXT


def test_numbers_are_those_of_the_code() -> None:
    assert f"the best {PROPOSALS} texts by words and the best {PROPOSALS} by letter trigrams" in TEXT
    assert f"the best {DEFAULT_AUTO_SIZE} stay" in TEXT
    assert f"The {DEFAULT_NUM_RANKED} candidates that can be among the first" in TEXT
    assert f"fitted to {NUM_QUERIES[0]} queries made from the catalogue" in TEXT
    assert f"up to {NUM_QUERIES[1]} of one with 3,000 entities or more" in TEXT
    assert [num_queries(count) for count in (48, 1200, 1500, 3000, 10**7)] == [400, 400, 500, 1000, 1000]
    assert f"at least {MIN_ENTITIES} entities" in TEXT
    assert f"{UNWEIGHED_MODEL} for `model.logprob`" in TEXT
    for name in METRICS:
        assert f"`{name}`" in TEXT
