"""Reading the catalogue and the queries of a training run."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.errors import SourceError
from retrieval.training.catalogue import TrainingEntity, read_catalogue, read_queries

ENTITIES = [TrainingEntity("Q1", "Nile"), TrainingEntity("Q2", "Rhine")]


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "input.tsv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_reads_every_column_it_knows_and_ignores_the_rest(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "entity_id\ttitle\taliases\tkind\tdescription\tlength_km\n"
        "Q1\tNile\tan-Nil|River Nile\triver\tLong river\t6650\n"
        "\n"
        "Q2\tRhine\t\triver\n",
    )
    nile, rhine = read_catalogue(file)
    assert nile == TrainingEntity("Q1", "Nile", ("an-Nil", "River Nile"), "Long river", "river")
    assert rhine == TrainingEntity("Q2", "Rhine", (), "", "river")
    assert nile.surfaces == ("Nile", "an-Nil", "River Nile")


def test_a_title_column_is_enough_and_names_the_entity(tmp_path: Path) -> None:
    assert read_catalogue(write(tmp_path, "\ufefftitle\r\nNile\r\n")) == [TrainingEntity("Nile", "Nile")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("title\n", "no entities"),
        ("name\nNile\n", "input.tsv:1: the header lacks the column 'title'"),
        ("title\tkind\nNile\triver\n\triver\n", "input.tsv:3: empty title"),
        ("title\nNile\tx\n", "input.tsv:2: expected 1 fields, got 2"),
        ("entity_id\ttitle\nQ1\tNile\nQ1\tRhine\n", "input.tsv:3: entity_id 'Q1' was already used in line 2"),
        (b"title\nN\xffle\n", "input.tsv:2: not valid UTF-8"),
    ],
)
def test_malformed_catalogues_are_refused_with_file_and_line(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(SourceError) as caught:
        read_catalogue(write(tmp_path, text))
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere\.tsv: no such file"):
        read_catalogue(tmp_path / "nowhere.tsv")


def test_queries_may_name_entities_by_id_or_by_title(tmp_path: Path) -> None:
    by_id = read_queries(write(tmp_path, "query\tentity_id\tsplit\nlong one\tQ1\ttest\n"), ENTITIES)
    by_title = read_queries(write(tmp_path, "query\ttitle\nlong one\tNile\n"), ENTITIES)
    assert [(q.text, q.entity_id, q.split) for q in by_id] == [("long one", "Q1", "test")]
    assert [(q.text, q.entity_id, q.split) for q in by_title] == [("long one", "Q1", "train")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("query\tentity_id\nx\tQ9\n", "input.tsv:2: the catalogue has no entity 'Q9'"),
        ("query\ttitle\nx\tThames\n", "input.tsv:2: the catalogue has no entity 'Thames'"),
        ("query\tentity_id\tsplit\nx\tQ1\tvalid\n", "split must be one of"),
        ("query\tentity_id\n\tQ1\n", "input.tsv:2: empty query"),
        ("query\nx\n", "needs a column entity_id or title"),
        ("query\tentity_id\n", "no queries"),
    ],
)
def test_malformed_queries_are_refused_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SourceError) as caught:
        read_queries(write(tmp_path, text), ENTITIES)
    assert said in str(caught.value)
