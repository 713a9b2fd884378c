"""Examples of a training run: the files they come from, what the generator draws, and their token ids."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from genret import Retriever
from genret.decoding.markup.link_syntax import read_annotated
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.index_builder.cli import build_command
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.reader import Index
from genret.retrieval.loaded_model import Limits
from genret.retrieval.prompts import ANNOTATE, JSON_ANSWER, CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.training.dataset import (
    IGNORED_LABEL,
    EncodedExample,
    ExampleDataset,
    ExampleEncoder,
    causal_batch,
    seq2seq_batch,
)
from genret.retrieval.training.examples import (
    LATER,
    LATER_WITH_MENTIONS,
    RECIPES,
    Example,
    ExampleGenerator,
    ExampleOptions,
    LinkedText,
    TextLink,
    damage_name,
    linked_texts,
    with_annotations,
    with_answers,
)
from genret.retrieval.training.presets import (
    END,
    QUERY,
    TITLE,
    scratch_config,
    train_tokenizer,
)
from genret.retrieval.training.training_data import (
    LabelledMention,
    TrainingEntity,
    TrainingQuery,
    read_catalogue,
    read_labelled_mentions,
    read_queries,
)
from genret.retrieval.training.training_run import TrainingPlan
from genret.retrieval.types import Mention
from tests.commands import succeed
from tests.evaluation_sets import write_lines
from tests.index_fixtures import character_tokenizer
from tests.retrieval.training.test_training_run import run

NILES = ("an-Nil", "River Nile")
ENTITIES = [
    TrainingEntity("1", "Nile", NILES, "Long north-flowing river of Egypt and Sudan", "river"),
    TrainingEntity("2", "Mercury (planet)", ("Mercury",), "Innermost and smallest planet", "planet"),
    TrainingEntity("3", "Zürich", (), "Largest city of Switzerland, on a lake", "city"),
]
QUERIES = [
    TrainingQuery("where did moses float in a basket", "1"),
    TrainingQuery("closest world to our star", "2"),
    TrainingQuery("Forbidden testword QUESTION", "2"),
    TrainingQuery("forbidden devword question", "3", "dev"),
    TrainingQuery("forbidden testword question", "3", "test"),
]
ONLY = {recipe: {name: float(name == recipe) for name in RECIPES} for recipe in RECIPES}


def draw(options: ExampleOptions, count: int = 400, start: int = 0, queries: bool = True) -> list:
    generator = ExampleGenerator(ENTITIES, QUERIES if queries else (), options)
    random = Random(11)
    return [generator.draw(start + i, random) for i in range(count)]


def text_of(example) -> str:  # type: ignore[no-untyped-def]
    if example.mention is not None:
        return f"{example.mention.left} {example.mention.mention} {example.mention.right}"
    return example.query


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_gives_a_text_and_a_title(recipe: str) -> None:
    examples = draw(ExampleOptions(first=ONLY[recipe], later=ONLY[recipe]))
    assert {example.recipe for example in examples} == {recipe}
    for example in examples:
        assert text_of(example).strip()
        assert (example.query is None) == (recipe == "mention")
    if recipe != "invented":
        surfaces = {surface for entity in ENTITIES for surface in entity.surfaces}
        titles = {entity.title for entity in ENTITIES}
        assert {example.title for example in examples} <= (surfaces if recipe == "name" else titles)
        # without a training query of its own the third entity is never asked for by query
        missing = {"Zürich"} if recipe == "query" else set()
        assert {example.title for example in examples} >= titles - missing


def test_dev_and_test_queries_are_never_seen() -> None:
    for example in draw(ExampleOptions(), count=3000):
        assert "testword" not in text_of(example).lower()
        assert "devword" not in text_of(example).lower()
        assert "forbidden" not in text_of(example).lower()


def test_names_come_first_and_meaning_later() -> None:
    options = ExampleOptions(ramp_examples=1000)
    early = Counter(example.recipe for example in draw(options, count=600, start=0))
    late = Counter(example.recipe for example in draw(options, count=600, start=10_000))
    assert early["name"] + early["invented"] > late["name"] + late["invented"]
    assert late["query"] > early["query"]


def test_damaged_names_keep_something() -> None:
    random = Random(2)
    for name in ("Nile", "Mercury (planet)", "Johann Sebastian Bach", "C"):
        assert all(damage_name(name, random).strip() for _ in range(200))


PLACES = [
    TrainingEntity(str(i), title, (), text)
    for i, (title, text) in enumerate(
        [("Nile", "Long river of Egypt"), ("Zürich", "City on a lake"), ("K2", "Second highest mountain")]
    )
]
PAIR = [EncodedExample((3, 9, 4), (7, 8, 1)), EncodedExample((3, 4), (6, 1))]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    texts = ["The Nile and the Rhine are rivers", *(f"{e.title} {e.description}" for e in PLACES)]
    return TextTokenizer(train_tokenizer(texts, 300), END, "rivers")


def test_tokens_are_those_of_serving(tokenizer: TextTokenizer) -> None:
    config = scratch_config()
    encoder = ExampleEncoder(tokenizer, config, max_prompt_tokens=96)
    got = encoder.encode(Example("Zürich", "name", query="Where is ZÜRICH </s>"))
    assert list(got.prompt_ids) == config.prompt("plain").encode(tokenizer, "Where is ZÜRICH </s>")
    assert list(got.title_ids) == tokenizer.encode_titles(["Zürich"], config.rendering or Rendering())[0]
    assert got.prompt_ids[0] == tokenizer.token_id(QUERY)
    assert got.prompt_ids[-1] == tokenizer.token_id(TITLE)
    assert got.title_ids.count(tokenizer.token_id(END) or -1) == 1
    assert tokenizer.token_id(END) not in got.prompt_ids  # what a user types is never special
    assert tokenizer.decode(got.title_ids) == " Zürich"


def test_a_document_is_taught_as_a_grammar_lets_it_be_written(tokenizer: TextTokenizer) -> None:
    document = json.dumps({"title": "Zürich", "kind": "city"}, ensure_ascii=False)
    example = Example("Zürich", "name", query="lake city", document=document)
    got = ExampleEncoder(tokenizer, with_answers(scratch_config()), 96).encode(example)
    # This tokenizer puts a blank before whatever begins a text, and no document begins with one.
    assert tokenizer.decode(tokenizer.encode_text(document)) != document
    assert tokenizer.decode(got.title_ids[:-1]) == document
    assert list(got.title_ids[:-1]) == tokenizer.encode_bytes(document.encode())


def test_a_document_is_taught_behind_its_schema_where_the_prompt_shows_one(tokenizer: TextTokenizer) -> None:
    config = replace(scratch_config(), answer_prompt="json")
    config = replace(config, prompts={**config.prompts, "json": JSON_ANSWER})
    example = Example("K2", "name", query="peak", document='{"title": "K2", "kind": "mountain"}')
    got = ExampleEncoder(tokenizer, config, 1000).encode(example)
    properties = {"title": {"type": "string"}, "kind": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["title", "kind"]}
    text = json.dumps(schema, separators=(",", ":"))
    assert list(got.prompt_ids) == JSON_ANSWER.showing(text).encode(tokenizer, "peak")
    assert ExampleEncoder(tokenizer, config, 96).encode(example) is None, "the schema is never cut"


def test_mentions_use_the_mention_template(tokenizer: TextTokenizer) -> None:
    config = scratch_config()
    mention = Mention("Nile", left="down the", right="by boat")
    got = ExampleEncoder(tokenizer, config, 96).encode(Example("Nile", "mention", mention=mention))
    template = config.prompt("mention")
    assert list(got.prompt_ids) == template.encode(tokenizer, template.mention_query(mention))


def dataset(tokenizer: TextTokenizer, seed: int) -> ExampleDataset:
    encoder = ExampleEncoder(tokenizer, scratch_config(), 96)
    return ExampleDataset(ExampleGenerator(PLACES), encoder.encode, length=500, batch_size=4, seed=seed)


def test_an_item_depends_on_the_seed_and_its_number_alone(tokenizer: TextTokenizer) -> None:
    first = [dataset(tokenizer, 1)[i] for i in range(150)]
    again = dataset(tokenizer, 1)
    assert [again[i] for i in reversed(range(150))] == first[::-1]  # as after a resume: any order
    other = dataset(tokenizer, 2)
    assert [other[i] for i in range(150)] != first


def test_batches_hold_prompts_of_like_length(tokenizer: TextTokenizer) -> None:
    items = [dataset(tokenizer, 1)[i] for i in range(64)]
    lengths = [len(item.prompt_ids) for item in items]
    spread = [max(lengths[i : i + 4]) - min(lengths[i : i + 4]) for i in range(0, 64, 4)]
    whole = max(lengths) - min(lengths)
    assert sum(spread) / len(spread) < whole / 4


def test_causal_batches_align_the_titles() -> None:
    batch = causal_batch(0, PAIR)
    assert batch["input_ids"].tolist() == [[3, 9, 4, 7, 8, 1], [0, 3, 4, 6, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0]]
    assert batch["position_ids"][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch["position_ids"][1, 1:5].tolist() == [0, 1, 2, 3]
    assert batch["labels"].tolist() == [[7, 8, 1], [6, 1, IGNORED_LABEL]]


def test_seq2seq_batches_keep_prompt_and_title_apart() -> None:
    batch = seq2seq_batch(0, (2, 5), PAIR)
    assert batch["input_ids"].tolist() == [[3, 9, 4], [3, 4, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 8, 1], [6, 1, IGNORED_LABEL]]
    assert batch["decoder_input_ids"].tolist() == [[2, 5, 7, 8], [2, 5, 6, 0]]
    assert batch["labels"].dtype == torch.int64


NILE = LabelledMention(Mention("Nile", "The ", " and the Rhine [1]."), "Nile")
RHINE = LabelledMention(Mention("Rhine", "The Nile and the ", " [1]."), "Rhine (river")


def test_mentions_of_one_text_are_put_together() -> None:
    nile, rhine = linked_texts([NILE, RHINE])
    assert nile.text == rhine.text == "The Nile and the Rhine [1]."
    assert nile.links == rhine.links
    assert (nile.chosen, rhine.chosen) == (0, 1)
    assert nile.annotated(0, len(nile.text)) == "The [Nile](Nile) and the [Rhine](Rhine \\(river) \\[1\\]."


def test_of_links_that_overlap_the_chosen_one_stands() -> None:
    inner = LabelledMention(Mention("York", "New ", " hour"), "York")
    outer = LabelledMention(Mention("New York", "", " hour"), "New York City")
    kept = [[link.title for link in linked.links] for linked in linked_texts([outer, inner])]
    assert kept == [["New York City"], ["York"]]


def test_windows_are_whole_words_around_the_chosen_link_and_cut_no_other() -> None:
    text = "one two three four five six seven"
    linked = LinkedText(text, (TextLink(4, 13, "A"), TextLink(14, 18, "B")), 1)
    window = linked.window(lambda begin, end: end - begin <= 14)
    assert text[slice(*window)] == " four five six"
    assert linked.window(lambda begin, end: False) is None
    assert linked.window(lambda begin, end: True) == (0, len(text))


def test_the_share_of_texts_is_drawn_and_nothing_else_changes() -> None:
    entities = [TrainingEntity("1", "Nile"), TrainingEntity("2", "Rhine (river")]
    options = ExampleOptions(first=ONLY["mention"], later=ONLY["mention"], annotations=0.5)
    drawn = ExampleGenerator(entities, (), options, [NILE, RHINE])
    examples = [drawn.draw(i, Random(i)) for i in range(800)]
    labelled = [example for example in examples if example.mention in (NILE.mention, RHINE.mention)]
    texts = [example for example in labelled if example.linked is not None]
    assert 0.4 < len(texts) / len(labelled) < 0.6
    plain = ExampleGenerator(entities, (), replace(options, annotations=0.0), [NILE, RHINE])
    assert all(plain.draw(i, Random(i)).linked is None for i in range(100))


def test_what_is_taught_is_what_the_constraint_lets_through(tokenizer: TextTokenizer) -> None:
    config = with_annotations(scratch_config())
    encoder = ExampleEncoder(tokenizer, config, 96)
    (linked, _) = linked_texts([NILE, RHINE])
    encoded = encoder.encode(Example("Nile", "mention", mention=NILE.mention, linked=linked))
    template = config.annotate_template(None)
    assert list(encoded.prompt_ids) == template.encode(tokenizer, linked.text)
    written = tokenizer.decode(encoded.title_ids[:-1])
    assert read_annotated(written.encode()).text.decode() == linked.text  # no blank before it
    assert encoded.title_ids[-1] == tokenizer.token_id("</s>")


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(40), Limits(20, 30, True)], ids=["none", "both", "apart"]
)
def test_texts_are_cut_to_the_positions_of_the_model(tokenizer: TextTokenizer, limits: Limits) -> None:
    config = with_annotations(scratch_config())
    encoder = ExampleEncoder(tokenizer, config, 24, limits)
    left = "and the rivers " * 40
    mention = Mention("Nile", left, " and the Rhine" * 40)
    (linked,) = linked_texts([LabelledMention(mention, "Nile")])
    encoded = encoder.encode(Example("Nile", "mention", mention=mention, linked=linked))
    assert len(encoded.prompt_ids) <= 24
    room = limits.room(len(encoded.prompt_ids))
    assert room is None or len(encoded.title_ids) <= room
    read = read_annotated(tokenizer.decode(encoded.title_ids[:-1]).encode())
    assert [link.title for link in read.links] == [b"Nile"]
    assert len(read.text) > 4


def test_the_template_is_the_built_in_one_or_beside_the_checkpoints_own(tmp_path: Path) -> None:
    assert with_annotations(CheckpointConfig()).annotate_template(None) is ANNOTATE
    taught = with_annotations(scratch_config())
    assert taught.annotate_prompt == "annotate"
    assert taught.annotate_template(None).suffix.startswith(" with links")
    assert not taught.annotate_template(None).lowercase
    assert with_annotations(taught) is taught
    taught.save(tmp_path)
    assert CheckpointConfig.load(tmp_path).annotate_template(None) == taught.annotate_template(None)
    scratch_config().save(tmp_path)
    assert "annotate" not in (tmp_path / "genret.json").read_text()


def test_a_share_without_labelled_mentions_is_refused(tmp_path: Path) -> None:
    plan = {"catalogue": tmp_path / "c.tsv", "queries": None, "out": tmp_path, "preset": "tiny"}
    with pytest.raises(InputError, match="needs labelled mentions"):
        TrainingPlan(**plan, annotations=0.5)


RIVERS = [TrainingEntity("Q1", "Nile"), TrainingEntity("Q2", "Rhine")]


def write(folder: Path, text: str) -> Path:
    file = folder / "input.tsv"
    file.write_bytes(text.encode())
    return file


def test_reads_every_column_it_knows_and_ignores_the_rest(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "entity_id\tTITLE\taliases\tKIND\tDescription\tlength_km\n"
        "Q1\tNile\tan-Nil|River Nile\triver\tLong  river\t6650\n"
        "Q2\tRhine\t\triver\t\t\n",
    )
    nile, rhine = read_catalogue(file)
    assert nile == TrainingEntity("Q1", "Nile", ("an-Nil", "River Nile"), "Long river", "river")
    assert rhine == TrainingEntity("Q2", "Rhine", (), "", "river")
    assert nile.surfaces == ("Nile", "an-Nil", "River Nile")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title\tkind\nNile\triver\n\triver\n", "line 3: no title"),
        (
            "entity_id\ttitle\nQ1\tNile\nQ1\tRhine\n",
            "line 3: entity_id used twice ('Q1', first on line 2 with other fields)",
        ),
        ("title\nNi\x07le\n", "no training has begun; correct them, or allow them with --max-bad-rows 1"),
    ],
)
def test_malformed_catalogues_are_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SourceError, match=re.escape(said)):
        read_catalogue(write(tmp_path, text))


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


def test_allowed_bad_rows_are_left_out_and_reported(tmp_path: Path) -> None:
    said: list[str] = []
    entities = read_catalogue(write(tmp_path, "title\nNile\n\nRhine\n"), 1, said.append)
    assert [entity.title for entity in entities] == ["Nile", "Rhine"]
    assert len(said) == 1
    assert "line 3: no title" in said[0]
    with pytest.raises(SourceError, match="no good row is left"):
        read_catalogue(write(tmp_path, "title\n\n"), 1)


def test_queries_may_name_entities_by_id_or_by_title(tmp_path: Path) -> None:
    by_id = read_queries(write(tmp_path, "query\tentity_id\tsplit\nlong one\tQ1\ttest\n"), RIVERS)
    assert [(q.text, q.entity_id, q.split) for q in by_id] == [("long one", "Q1", "test")]
    # Titles follow the text policy, and of namesakes the first is meant.
    entities = [TrainingEntity("Zürich", "Zürich"), TrainingEntity("Zürich#2", "Zürich")]
    by_title = read_queries(write(tmp_path, "Query\tTitle\n banks  here \t Zu\u0308rich \n"), entities)
    assert [(q.text, q.entity_id, q.split) for q in by_title] == [("banks  here", "Zürich", "train")]


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
    with pytest.raises(SourceError, match=re.escape(said)):
        read_queries(write(tmp_path, text), RIVERS)


LINES = [
    {"id": 1, "left": "They sailed up the ", "mention": "Nile", "right": ".", "title": "Nile"},
    {"mention": "Mercury", "right": " is hot", "entity_id": "2"},
    {"mention": "nobody", "title": None},
]


@pytest.mark.parametrize("name", ["m.jsonl", "m.jsonl.gz"])
def test_titles_and_ids_are_labels_and_lines_without_one_are_left_out(tmp_path: Path, name: str) -> None:
    assert read_labelled_mentions(write_lines(tmp_path / name, LINES), ENTITIES) == [
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
        (["x"], "line 2: expected a JSON object, got ['x']"),
    ],
    ids=["title", "id", "number", "no mention", "list"],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    file = write_lines(tmp_path / "m.jsonl", [LINES[0], line])
    with pytest.raises(SourceError, match=f"{re.escape(str(file))}.*{re.escape(message)}"):
        read_labelled_mentions(file, ENTITIES)


def test_a_file_without_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no mention with a title or an entity_id"):
        read_labelled_mentions(write_lines(tmp_path / "m.jsonl", [LINES[2]]), ENTITIES)


def test_most_mentions_drawn_are_the_labelled_ones() -> None:
    labelled = LabelledMention(Mention("It", "", " floods every summer"), "Nile")
    generator = ExampleGenerator(
        ENTITIES, (), ExampleOptions(first=ONLY["mention"], later=ONLY["mention"]), [labelled]
    )
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
    fixed = ("--preset", "tiny", "--max-steps", "150", "--batch-size", "12")
    result = run(tmp_path / "catalogue.tsv", out, "--mentions", str(mentions), *fixed)
    assert ", 2 mentions\n" in result.stderr

    index = tmp_path / "i.index"
    succeed(build_command, tmp_path / "catalogue.tsv", "--tokenizer", out, "--out", index)
    with Retriever.open(index, out, device="cpu", dtype="float32") as retriever:
        asked = [Mention("Mercury", line["left"], line["right"]) for line in lines]  # type: ignore[index]
        titles = [result.candidates[0].title for result in retriever.link(asked)]
        assert titles == ["Mercury (planet)", "Mercury (element)"]
