"""Reading the catalogue and the queries of a training run."""

from __future__ import annotations

from pathlib import Path

import pytest

from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.errors import SourceError
from genret.retrieval.index.reader import Index
from genret.retrieval.training.training_data import TrainingEntity, read_catalogue, read_queries
from tests.index_fixtures import character_tokenizer

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
        "Q2\tRhine\t\triver\t\t\n",
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
        ("title\n", "a header but no title below it"),
        ("name\tkind\nNile\triver\n", "line 1 has tabs, but none of its fields is 'title'"),
        ("title\tkind\nNile\triver\n\triver\n", "line 3: no title"),
        ("title\nNile\tx\n", "line 2: too many tabs (expected 1 fields, got 2)"),
        ("title\tkind\nNile\n", "line 2: too few fields (expected 2 fields, got 1)"),
        (
            "entity_id\ttitle\nQ1\tNile\nQ1\tRhine\n",
            "line 3: entity_id used twice ('Q1', first on line 2 with other fields)",
        ),
        (b"title\nN\xffle\n", "line 2: not valid UTF-8"),
        ("title\nNi\x07le\n", "no training has begun; correct them, or allow them with --max-bad-rows 1"),
    ],
)
def test_malformed_catalogues_are_refused_with_file_and_line(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(SourceError) as caught:
        read_catalogue(write(tmp_path, text))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "Entity_ID\tTITLE\tAliases\nQ1\tNile\tan-Nil|an-Nil|Nile\nQ2\tRhine\t\n",
        "title\tkind\nParis\tcity\nParis\tcity\nParis\tperson\nParis#2\tship\n",
        "entity_id\ttitle\nQ1\tParis\nQ2\tParis\nQ1\tParis\n",
        "Nile\nRhine\n",
        "\ufeffNile\r\nRhine\r\n",
        "title\nZu\u0308rich\n  Mount \u00a0 Everest \n",
        "title\tKind\nNile\triver\n",
    ],
    ids=["letter case", "title twice", "record twice", "lines", "BOM and CRLF", "policy", "Kind"],
)
def test_what_builds_an_index_trains_a_model(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    build_index(file, character_tokenizer(text.upper() + text + "ü "), BuildOptions(out=tmp_path / "index"))
    index = Index.open(tmp_path / "index")
    stored = [index.entity(number) for number in range(index.num_entities)]
    ours = [(e.entity_id, e.title, e.aliases) for e in read_catalogue(file)]
    assert sorted(ours) == sorted((e.entity_id, e.title, e.aliases) for e in stored)


def test_kind_and_description_are_found_in_any_case(tmp_path: Path) -> None:
    file = write(tmp_path, "TITLE\tDescription\tKIND\nNile\tLong  river\triver\n")
    assert read_catalogue(file) == [TrainingEntity("Nile", "Nile", (), "Long river", "river")]


def test_allowed_bad_rows_are_left_out_and_reported(tmp_path: Path) -> None:
    said: list[str] = []
    entities = read_catalogue(write(tmp_path, "title\nNile\n\nRhine\n"), 1, said.append)
    assert [entity.title for entity in entities] == ["Nile", "Rhine"]
    assert len(said) == 1
    assert "line 3: no title" in said[0]
    with pytest.raises(SourceError, match="no good row is left"):
        read_catalogue(write(tmp_path, "title\n\n"), 1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere\.tsv: no such file"):
        read_catalogue(tmp_path / "nowhere.tsv")


def test_queries_may_name_entities_by_id_or_by_title(tmp_path: Path) -> None:
    by_id = read_queries(write(tmp_path, "query\tentity_id\tsplit\nlong one\tQ1\ttest\n"), ENTITIES)
    by_title = read_queries(write(tmp_path, "query\ttitle\nlong one\tNile\n"), ENTITIES)
    assert [(q.text, q.entity_id, q.split) for q in by_id] == [("long one", "Q1", "test")]
    assert [(q.text, q.entity_id, q.split) for q in by_title] == [("long one", "Q1", "train")]


def test_queries_follow_the_text_policy_of_titles(tmp_path: Path) -> None:
    entities = [TrainingEntity("Zürich", "Zürich"), TrainingEntity("Zürich#2", "Zürich")]
    queries = read_queries(write(tmp_path, "Query\tTitle\n banks  here \t Zu\u0308rich \n"), entities)
    assert [(q.text, q.entity_id) for q in queries] == [("banks  here", "Zürich")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("query\tQuery\tentity_id\nx\ty\tQ1\n", "names a column more than once"),
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
