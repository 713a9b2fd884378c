"""Examples as token ids: serving's tokenisation, determinism, padding."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from genret.retrieval.prompts import JSON_ANSWER
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.training.dataset import (
    IGNORED_LABEL,
    CausalCollator,
    EncodedExample,
    ExampleDataset,
    ExampleEncoder,
    Seq2SeqCollator,
)
from genret.retrieval.training.examples import Example, ExampleGenerator, with_answers
from genret.retrieval.training.presets import (
    END,
    QUERY,
    TITLE,
    save_tokenizer,
    scratch_config,
    train_tokenizer,
)
from genret.retrieval.training.training_data import TrainingEntity
from genret.retrieval.types import Mention

ENTITIES = [
    TrainingEntity(str(i), title, (), text)
    for i, (title, text) in enumerate(
        [("Nile", "Long river of Egypt"), ("Zürich", "City on a lake"), ("K2", "Second highest mountain")]
    )
]
PAIR = [EncodedExample((3, 9, 4), (7, 8, 1)), EncodedExample((3, 4), (6, 1))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer([e.title + " " + e.description for e in ENTITIES], 300), folder)
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


def test_long_prompts_lose_the_end_of_the_query_not_the_markup(tokenizer: TextTokenizer) -> None:
    got = ExampleEncoder(tokenizer, scratch_config(), 10).encode(Example("K2", "name", query="word " * 50))
    assert got is not None
    assert len(got.prompt_ids) == 10
    assert got.prompt_ids[-1] == tokenizer.token_id(TITLE)


def dataset(tokenizer: TextTokenizer, seed: int) -> ExampleDataset:
    encoder = ExampleEncoder(tokenizer, scratch_config(), 96)
    return ExampleDataset(ExampleGenerator(ENTITIES), encoder, length=500, batch_size=4, seed=seed)


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
    batch = Seq2SeqCollator(pad_id=0, decoder_prompt=(2,))(PAIR)
    assert batch["input_ids"].tolist() == [[3, 9, 4], [3, 4, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 8, 1], [6, 1, IGNORED_LABEL]]
    assert batch["decoder_input_ids"].tolist() == [[2, 7, 8], [2, 6, 0]]
    assert batch["labels"].dtype == torch.int64


def test_seq2seq_titles_stand_behind_the_whole_decoder_prompt() -> None:
    batch = Seq2SeqCollator(pad_id=0, decoder_prompt=(2, 5))(PAIR)
    assert batch["decoder_input_ids"].tolist() == [[2, 5, 7, 8], [2, 5, 6, 0]]
    assert batch["labels"].tolist() == [[7, 8, 1], [6, 1, IGNORED_LABEL]]
    with pytest.raises(ValueError, match="decoder_prompt must not be empty"):
        Seq2SeqCollator(pad_id=0, decoder_prompt=())
