"""Reading the catalogue, the queries and the labelled mentions of a training run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from genret import Retriever
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.index_builder.cli import build_command
from genret.retrieval.errors import SourceError
from genret.retrieval.index.reader import Index
from genret.retrieval.training.examples import (
    LATER,
    LATER_WITH_MENTIONS,
    RECIPES,
    ExampleGenerator,
    ExampleOptions,
)
from genret.retrieval.training.train_command import train_command
from genret.retrieval.training.training_data import (
    LabelledMention,
    TrainingEntity,
    read_catalogue,
    read_labelled_mentions,
    read_queries,
)
from genret.retrieval.types import Mention
from tests.evaluation_sets import write_lines
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


NAMED = [
    TrainingEntity("1", "Nile", ("River Nile",), "Longest river of Africa", "river"),
    TrainingEntity("2", "Mercury (planet)", (), "", "planet"),
]
LINES = [
    {"id": 1, "left": "They sailed up the ", "mention": "Nile", "right": ".", "title": "Nile"},
    {"mention": "Mercury", "right": " is hot", "entity_id": "2"},
    {"mention": "nobody", "title": None},
]


@pytest.mark.parametrize("name", ["m.jsonl", "m.jsonl.gz"])
def test_titles_and_ids_are_labels_and_lines_without_one_are_left_out(tmp_path: Path, name: str) -> None:
    assert read_labelled_mentions(write_lines(tmp_path / name, LINES), NAMED) == [
        LabelledMention(Mention("Nile", "They sailed up the ", "."), "Nile"),
        LabelledMention(Mention("Mercury", "", " is hot"), "Mercury (planet)"),
    ]


def test_a_title_is_compared_after_the_text_policy(tmp_path: Path) -> None:
    entities = [TrainingEntity("1", "Café Müller")]
    file = write_lines(tmp_path / "m.jsonl", [{"mention": "it", "title": "  Cafe\u0301  Mu\u0308ller "}])
    assert read_labelled_mentions(file, entities) == [LabelledMention(Mention("it"), "Café Müller")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"mention": "x", "title": "Rhine"}, "line 2: the catalogue has no entity 'Rhine'"),
        ({"mention": "x", "entity_id": "9"}, "line 2: the catalogue has no entity '9'"),
        ({"mention": "x", "title": 7}, "line 2: field 'title'"),
        ({"title": "Nile"}, "line 2: field 'mention': is missing"),
        (["x"], "line 2: expected a JSON object, got list"),
    ],
    ids=["title", "id", "number", "no mention", "list"],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    file = write_lines(tmp_path / "m.jsonl", [LINES[0], line])
    with pytest.raises(SourceError) as caught:
        read_labelled_mentions(file, NAMED)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_a_file_without_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no mention with a title or an entity_id"):
        read_labelled_mentions(write_lines(tmp_path / "m.jsonl", [LINES[2]]), NAMED)


def test_most_mentions_drawn_are_the_labelled_ones() -> None:
    only = {recipe: float(recipe == "mention") for recipe in RECIPES}
    labelled = LabelledMention(Mention("It", "", " floods every summer"), "Nile")
    generator = ExampleGenerator(NAMED, (), ExampleOptions(first=only, later=only), [labelled])
    random = Random(3)
    drawn = [generator.draw(i, random) for i in range(2000)]
    counts = Counter(example.mention == labelled.mention for example in drawn)
    assert 0.75 < counts[True] / len(drawn) < 0.85
    assert all(example.title == "Nile" for example in drawn if example.mention == labelled.mention)
    assert LATER_WITH_MENTIONS["mention"] > 4 * LATER["mention"]


def test_a_run_learns_what_a_name_means_where_it_stands(tmp_path: Path) -> None:
    """Two entities of one name, told apart by the sentence alone."""
    rows = "entity_id\ttitle\n1\tMercury (planet)\n2\tMercury (element)\n3\tNile\n"
    (tmp_path / "catalogue.tsv").write_text(rows, encoding="utf-8")
    lines: list[object] = [
        {"mention": "Mercury", "left": left, "right": right, "title": title}
        for left, right, title in (
            ("the orbit of ", " around the Sun", "Mercury (planet)"),
            ("a thermometer with ", " in it", "Mercury (element)"),
        )
    ]
    mentions = write_lines(tmp_path / "m.jsonl", lines)
    out = tmp_path / "model"
    arguments = ["--catalogue", str(tmp_path / "catalogue.tsv"), "--mentions", str(mentions)]
    arguments += ["--out", str(out)]
    fixed = ["--preset", "tiny", "--vocab-size", "300", "--max-steps", "150", "--batch-size", "12", "--cpu"]
    result = CliRunner().invoke(train_command, [*arguments, *fixed])
    assert result.exit_code == 0, result.output
    assert "2 labelled mentions" in result.stderr

    index = tmp_path / "i.index"
    built = [str(tmp_path / "catalogue.tsv"), "--tokenizer", str(out), "--out", str(index)]
    result = CliRunner().invoke(build_command, built)
    assert result.exit_code == 0, result.output
    with Retriever.open(index, out, device="cpu", dtype="float32") as retriever:
        asked = [Mention("Mercury", line["left"], line["right"]) for line in lines]  # type: ignore[index]
        titles = [result.candidates[0].title for result in retriever.link(asked)]
        assert titles == ["Mercury (planet)", "Mercury (element)"]


def test_a_wrong_file_ends_the_command_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "catalogue.tsv").write_text("title\nNile\n", encoding="utf-8")
    mentions = write_lines(tmp_path / "m.jsonl", [{"mention": "x", "title": "Rhine"}])
    arguments = ["--catalogue", str(tmp_path / "catalogue.tsv"), "--mentions", str(mentions)]
    result = CliRunner().invoke(train_command, [*arguments, "--out", str(tmp_path / "o"), "--preset", "tiny"])
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"reading {tmp_path / 'catalogue.tsv'}",
        f"Error: {mentions}, line 1: the catalogue has no entity 'Rhine'",
    ]
