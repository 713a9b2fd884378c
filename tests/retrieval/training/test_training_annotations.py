"""`genret train --annotations`: labelled mentions become texts with links, as long as the model allows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from genret.decoding.markup.link_syntax import read_annotated
from genret.retrieval.errors import InputError
from genret.retrieval.loaded_model import Limits
from genret.retrieval.prompts import ANNOTATE, CheckpointConfig
from genret.retrieval.text import TextTokenizer
from genret.retrieval.training.dataset import ExampleEncoder
from genret.retrieval.training.examples import (
    Example,
    ExampleGenerator,
    ExampleOptions,
    LinkedText,
    Mixture,
    TextLink,
    linked_texts,
    with_annotations,
)
from genret.retrieval.training.presets import save_tokenizer, scratch_config, train_tokenizer
from genret.retrieval.training.training_data import LabelledMention, TrainingEntity
from genret.retrieval.training.training_run import TrainingPlan
from genret.retrieval.types import Mention

NILE = LabelledMention(Mention("Nile", "The ", " and the Rhine [1]."), "Nile")
RHINE = LabelledMention(Mention("Rhine", "The Nile and the ", " [1]."), "Rhine (river")
ONLY_MENTIONS = Mixture(0, 0, 0, 0, 1, 0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(["The Nile and the Rhine are rivers"], 300), folder)
    return TextTokenizer.load(folder)


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
    options = ExampleOptions(first=ONLY_MENTIONS, later=ONLY_MENTIONS, annotations=0.5)
    drawn = ExampleGenerator(entities, (), options, [NILE, RHINE])
    examples = [drawn.draw(i, Random(i)) for i in range(800)]
    labelled = [example for example in examples if example.mention in (NILE.mention, RHINE.mention)]
    texts = [example for example in labelled if example.linked is not None]
    assert 0.4 < len(texts) / len(labelled) < 0.6
    plain = ExampleGenerator(entities, (), replace(options, annotations=0.0), [NILE, RHINE])
    assert all(plain.draw(i, Random(i)).linked is None for i in range(100))
    with pytest.raises(ValueError, match=r"annotations must be in \[0, 1\]"):
        ExampleOptions(annotations=1.5)


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
