"""A small catalogue and queries to train on."""

from __future__ import annotations

from pathlib import Path

import pytest

CATALOGUE = (
    "entity_id\ttitle\taliases\tkind\tdescription\n"
    "1\tNile\tan-Nil\triver\tLongest river of Africa\n"
    "2\tRhine\t\triver\tRiver that flows past Cologne\n"
    "3\tMount Everest\tEverest\tmountain\tHighest mountain above the sea\n"
    "4\tK2\t\tmountain\tSecond highest mountain\n"
)
QUERIES = (
    "query\tentity_id\tsplit\n"
    "pharaohs sailed on it\t1\ttrain\n"
    "where the lorelei sings\t2\ttrain\n"
    "hillary climbed it\t3\tdev\n"
    "savage peak\t4\ttest\n"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "catalogue.tsv").write_text(CATALOGUE, encoding="utf-8")
    (tmp_path / "queries.tsv").write_text(QUERIES, encoding="utf-8")
    return tmp_path
