"""`genret train --mentions`: labelled mentions are read, drawn and learnt; wrong ones are refused."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from genret import Retriever
from genret.index_builder.cli import build_command
from genret.retrieval.errors import SourceError
from genret.retrieval.training.examples import (
    LATER,
    LATER_WITH_MENTIONS,
    ExampleGenerator,
    ExampleOptions,
    Mixture,
)
from genret.retrieval.training.train_command import train_command
from genret.retrieval.training.training_data import LabelledMention, TrainingEntity, read_labelled_mentions
from genret.retrieval.types import Mention

ENTITIES = [
    TrainingEntity("1", "Nile", ("River Nile",), "Longest river of Africa", "river"),
    TrainingEntity("2", "Mercury (planet)", (), "", "planet"),
]
LINES = [
    {"id": 1, "left": "They sailed up the ", "mention": "Nile", "right": ".", "title": "Nile"},
    {"mention": "Mercury", "right": " is hot", "entity_id": "2"},
    {"mention": "nobody", "title": None},
]


def write(file: Path, lines: list[object]) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if file.suffix == ".gz":
        file.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["m.jsonl", "m.jsonl.gz"])
def test_titles_and_ids_are_labels_and_lines_without_one_are_left_out(tmp_path: Path, name: str) -> None:
    assert read_labelled_mentions(write(tmp_path / name, LINES), ENTITIES) == [
        LabelledMention(Mention("Nile", "They sailed up the ", "."), "Nile"),
        LabelledMention(Mention("Mercury", "", " is hot"), "Mercury (planet)"),
    ]


def test_a_title_is_compared_after_the_text_policy(tmp_path: Path) -> None:
    entities = [TrainingEntity("1", "Café Müller")]
    file = write(tmp_path / "m.jsonl", [{"mention": "it", "title": "  Cafe\u0301  Mu\u0308ller "}])
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
    file = write(tmp_path / "m.jsonl", [LINES[0], line])
    with pytest.raises(SourceError) as caught:
        read_labelled_mentions(file, ENTITIES)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_a_file_without_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no mention with a title or an entity_id"):
        read_labelled_mentions(write(tmp_path / "m.jsonl", [LINES[2]]), ENTITIES)


def test_most_mentions_drawn_are_the_labelled_ones() -> None:
    only = Mixture(name=0, description=0, query=0, keywords=0, mention=1, invented=0)
    labelled = LabelledMention(Mention("It", "", " floods every summer"), "Nile")
    generator = ExampleGenerator(ENTITIES, (), ExampleOptions(first=only, later=only), [labelled])
    random = Random(3)
    drawn = [generator.draw(i, random) for i in range(2000)]
    counts = Counter(example.mention == labelled.mention for example in drawn)
    assert 0.75 < counts[True] / len(drawn) < 0.85
    assert all(example.title == "Nile" for example in drawn if example.mention == labelled.mention)
    assert LATER_WITH_MENTIONS.mention > 4 * LATER.mention


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
    mentions = write(tmp_path / "m.jsonl", lines)
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
    mentions = write(tmp_path / "m.jsonl", [{"mention": "x", "title": "Rhine"}])
    arguments = ["--catalogue", str(tmp_path / "catalogue.tsv"), "--mentions", str(mentions)]
    result = CliRunner().invoke(train_command, [*arguments, "--out", str(tmp_path / "o"), "--preset", "tiny"])
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"reading {tmp_path / 'catalogue.tsv'}",
        f"Error: {mentions}, line 1: the catalogue has no entity 'Rhine'",
    ]
