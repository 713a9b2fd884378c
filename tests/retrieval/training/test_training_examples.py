"""What the example generator draws, and examples as token ids."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from genret.decoding.markup.link_syntax import read_annotated
from genret.retrieval.errors import InputError
from genret.retrieval.loaded_model import Limits
from genret.retrieval.prompts import ANNOTATE, JSON_ANSWER, CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.training.dataset import (
    IGNORED_LABEL,
    CausalCollator,
    EncodedExample,
    ExampleDataset,
    ExampleEncoder,
    Seq2SeqCollator,
)
from genret.retrieval.training.examples import (
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
    save_tokenizer,
    scratch_config,
    train_tokenizer,
)
from genret.retrieval.training.training_data import LabelledMention, TrainingEntity, TrainingQuery
from genret.retrieval.training.training_run import TrainingPlan
from genret.retrieval.types import Mention

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


def test_titles_alone_are_enough() -> None:
    generator = ExampleGenerator([TrainingEntity("x", "K2")])
    random = Random(0)
    assert {generator.draw(i, random).title for i in range(50)} >= {"K2"}


def test_the_same_seed_draws_the_same() -> None:
    assert draw(ExampleOptions()) == draw(ExampleOptions())


def test_damaged_names_keep_something() -> None:
    random = Random(2)
    for name in ("Nile", "Mercury (planet)", "Johann Sebastian Bach", "C"):
        assert all(damage_name(name, random).strip() for _ in range(200))


def test_an_empty_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match="entities"):
        ExampleGenerator([])


PLACES = [
    TrainingEntity(str(i), title, (), text)
    for i, (title, text) in enumerate(
        [("Nile", "Long river of Egypt"), ("Zürich", "City on a lake"), ("K2", "Second highest mountain")]
    )
]
PAIR = [EncodedExample((3, 9, 4), (7, 8, 1)), EncodedExample((3, 4), (6, 1))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    texts = ["The Nile and the Rhine are rivers", *(f"{e.title} {e.description}" for e in PLACES)]
    save_tokenizer(train_tokenizer(texts, 300), folder)
    return TextTokenizer.load(folder)


def test_tokens_are_those_of_serving(tokenizer: TextTokenizer) -> None:
    config = scratch_config()
    encoder = ExampleEncoder(tokenizer, config, max_prompt_tokens=96)
    got = encoder.encode(Example("Zürich", "name", query="Where is ZÜRICH </s>"))
    assert got is not None
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
    assert got is not None
    # This tokenizer puts a blank before whatever begins a text, and no document begins with one.
    assert tokenizer.decode(tokenizer.encode_text(document)) != document
    assert tokenizer.decode(got.title_ids[:-1]) == document
    assert list(got.title_ids[:-1]) == tokenizer.encode_bytes(document.encode())


def test_a_document_is_taught_behind_its_schema_where_the_prompt_shows_one(tokenizer: TextTokenizer) -> None:
    config = replace(scratch_config(), answer_prompt="json")
    config = replace(config, prompts={**config.prompts, "json": JSON_ANSWER})
    example = Example("K2", "name", query="peak", document='{"title": "K2", "kind": "mountain"}')
    got = ExampleEncoder(tokenizer, config, 1000).encode(example)
    assert got is not None
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
    assert got is not None
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
    batch = CausalCollator(pad_id=0)(PAIR)
    assert batch["input_ids"].tolist() == [[3, 9, 4, 7, 8, 1], [0, 3, 4, 6, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0]]
    assert batch["position_ids"][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch["position_ids"][1, 1:5].tolist() == [0, 1, 2, 3]
    assert batch["labels"].tolist() == [[7, 8, 1], [6, 1, IGNORED_LABEL]]


def test_seq2seq_batches_keep_prompt_and_title_apart() -> None:
    batch = Seq2SeqCollator(pad_id=0, decoder_prompt=(2, 5))(PAIR)
    assert batch["input_ids"].tolist() == [[3, 9, 4], [3, 4, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 8, 1], [6, 1, IGNORED_LABEL]]
    assert batch["decoder_input_ids"].tolist() == [[2, 5, 7, 8], [2, 5, 6, 0]]
    assert batch["labels"].dtype == torch.int64
    with pytest.raises(ValueError, match="decoder_prompt must not be empty"):
        Seq2SeqCollator(pad_id=0, decoder_prompt=())


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
    assert window is not None
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
    assert encoded is not None
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
    assert encoded is not None
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
    with pytest.raises(InputError, match=r"must be in \[0, 1\]"):
        TrainingPlan(**plan, annotations=2, mentions=tmp_path / "m.jsonl")
