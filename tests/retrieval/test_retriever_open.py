"""Retrievers and tries that do not fit together are refused when opened, with a text that says what to do."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from genret import Index, Retriever, title_trie
from genret.index_builder.build_options import check_model
from genret.retrieval.checkpoints import DEFAULT_MODEL_VARIABLE
from genret.retrieval.errors import (
    GenretError,
    IndexMismatchError,
    IndexNotFoundError,
    InputError,
    ModelError,
)
from genret.retrieval.prompts import BUILT_IN, CheckpointConfig, PromptTemplate
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.types import Mention
from tests.checkpoints import (
    END,
    checkpoint_config,
    make_checkpoint,
    make_index,
    save_tokenizer,
    train_tokenizer,
)


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """The checkpoint, to be spoilt."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def refusal(
    kind: type[GenretError], index: Path, model: Path | str | None, *parts: str, **options: Any
) -> str:
    """Fail unless opening raises this error with these parts in its text; return the text."""
    with pytest.raises(GenretError) as error:
        Retriever.open(index, model, **options)
    assert isinstance(error.value, kind)
    for part in parts:
        assert part in str(error.value)
    return str(error.value)


def test_good_ones_open(index: Path, checkpoint: Path) -> None:
    with Retriever.open(str(index), str(checkpoint), device="cpu", dtype="float64", num_threads=1) as it:
        assert it.retrieve("x", k=1)[0].candidates


def test_what_is_missing_is_named(tmp_path: Path, index: Path, checkpoint: Path) -> None:
    absent, said = tmp_path / "absent" / "model", "neither an existing path nor a valid hub id"
    refusal(IndexNotFoundError, absent, checkpoint, str(absent))
    refusal(IndexNotFoundError, tmp_path, checkpoint)
    refusal(ModelError, index, absent, "absent/model", said)
    with pytest.raises(IndexNotFoundError, match="absent"):
        title_trie(absent, checkpoint)
    with pytest.raises(ModelError, match="absent"):
        title_trie(index, absent)


def test_missing_default_model(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Path:
        raise ModelError("the shipped small model was not found")

    monkeypatch.delenv(DEFAULT_MODEL_VARIABLE)
    monkeypatch.setattr("genret.retrieval.compatibility.small_model_dir", absent)
    refusal(ModelError, index, None, "shipped small model")


def test_a_wrong_tokenizer_and_the_variable_that_named_it_are_told(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_checkpoint(tmp_path / "other", tokenizer=train_tokenizer(vocab_size=300))
    parts = (str(index), str(other), "sha256:", "(--model), or", f"build-index … --tokenizer {other}")
    named = refusal(IndexMismatchError, index, other, *parts)
    monkeypatch.setenv(DEFAULT_MODEL_VARIABLE, str(other))
    told = refusal(IndexMismatchError, index, None)
    assert told == f"the model named by $GENRET_DEFAULT_MODEL does not fit (unset it?): {named}"


def test_tokenizer_is_compared_before_the_weights_are_read(index: Path, tmp_path: Path) -> None:
    save_tokenizer(train_tokenizer(vocab_size=300), tmp_path / "bare")
    refusal(IndexMismatchError, index, tmp_path / "bare")
    with pytest.raises(IndexMismatchError, match=r"was built with the tokenizer .*sha256:.* rebuild it with"):
        title_trie(index, tmp_path / "bare")


def test_model_vocabulary_too_small(index: Path, checkpoint: Path, tmp_path: Path) -> None:
    said = "can write only tokens below 280"
    refusal(IndexMismatchError, index, make_checkpoint(tmp_path / "small", model_vocab_size=280), said)
    with pytest.raises(IndexMismatchError, match=said):
        title_trie(index, checkpoint, vocab_size=280)
    assert title_trie(index, checkpoint, vocab_size=512).vocab_size == 512


def with_late_special_tokens(config: CheckpointConfig, folder: Path) -> tuple[Path, Path]:
    """An index, and a model whose embeddings stop before the tokenizer's last token "<ask>"."""
    tokenizer = train_tokenizer()
    last = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["<ask>"])
    checkpoint = make_checkpoint(folder / "model", tokenizer=tokenizer, config=config, model_vocab_size=last)
    return make_index(folder, checkpoint), checkpoint


def test_model_without_its_templates_special_tokens(tmp_path: Path) -> None:
    prompts = {"plain": PromptTemplate("plain", prefix="<ask>"), "mention": PromptTemplate("mention")}
    said = "the prompt template 'plain' needs token 320, but the model knows only tokens below 320"
    refusal(ModelError, *with_late_special_tokens(CheckpointConfig(prompts=prompts), tmp_path), said)


def test_unknown_token_of_one_template_is_that_requests_error(tmp_path: Path) -> None:
    prompts = {**BUILT_IN, "odd": PromptTemplate("odd", prefix="<ask>")}
    index, checkpoint = with_late_special_tokens(CheckpointConfig(prompts=prompts), tmp_path)
    with Retriever.open(index, checkpoint) as retriever:
        assert retriever.retrieve("<ask>")[0].candidates  # as plain text
        with pytest.raises(
            InputError, match=r"query: holds token 320, which the model does not know \(it has 320"
        ):
            retriever.retrieve("x", prompt="odd")


@pytest.mark.parametrize(
    ("rendering", "built"),
    [
        (Rendering(prefix="", end_token=END), "'TITLE' and '</s>'"),
        (Rendering(prefix=" ", suffix=">", end_token=END), "' TITLE>' and '</s>'"),
        (Rendering(context=":", end_token=END), "':TITLE' and '</s>'"),
        (Rendering(prefix=" ", end_token="<pad>"), "' TITLE' and '<pad>'"),
    ],
)
def test_rendering_mismatch(checkpoint: Path, tmp_path: Path, rendering: Rendering, built: str) -> None:
    index = make_index(tmp_path, checkpoint, rendering=rendering)
    both = f"titles stand behind a prompt as {built}, but {checkpoint} was taught ' TITLE' and '</s>'"
    command = f"build-index … --tokenizer {checkpoint}"
    refusal(IndexMismatchError, index, checkpoint, f"{both}; rebuild", command)
    with pytest.raises(IndexMismatchError, match=re.escape(both)):
        title_trie(index, checkpoint)
    taught_nothing = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    (taught_nothing / "genret.json").unlink()
    assert title_trie(index, taught_nothing).num_rows > 0
    with pytest.raises(InputError, match=f"weigh_model: {checkpoint}: expected a model .*: {both}"):
        check_model(str(checkpoint), TextTokenizer.load(checkpoint), rendering, None)


@pytest.mark.parametrize(
    "rendering", [Rendering(prefix=" "), Rendering(context=":", prefix=" ", end_token=END)]
)
def test_renderings_that_give_the_same_tokens_fit(
    checkpoint: Path, tmp_path: Path, rendering: Rendering
) -> None:
    Retriever.open(make_index(tmp_path, checkpoint, rendering=rendering), checkpoint).close()
    check_model(str(checkpoint), TextTokenizer.load(checkpoint), rendering, None)


def test_a_prompt_that_does_not_fit_the_index_is_refused_with_both_sides_named(tmp_path: Path) -> None:
    """Titles in angle brackets behind a prompt that shows them bare, and a prompt that shows them so."""
    checkpoint = make_checkpoint(tmp_path / "model", max_positions=512)
    rendering = Rendering(context="Entity:", prefix=" <", suffix=">")
    angled = PromptTemplate("angled", prefix="Query: <", suffix=">    Entity:", rendering=rendering)
    CheckpointConfig(prompts={**BUILT_IN, "angled": angled}).save(checkpoint)
    index = make_index(tmp_path, TextTokenizer.load(checkpoint), rendering=rendering)
    refusal(
        *(IndexMismatchError, index, checkpoint),
        "titles stand behind a prompt as 'Entity: <TITLE>' and '</s>'",
        f"but the prompt 'plain' of {checkpoint} expects 'Entity: TITLE'",
        "as with --prompt angled, or rebuild the index",
        f"build-index … --tokenizer {checkpoint}",
    )
    with Retriever.open(index, checkpoint, prompt="angled") as retriever:
        found = retriever.retrieve("x", k=3)[0].candidates
        assert found
        assert found == retriever.retrieve("x", k=3, prompt="angled")[0].candidates
        retriever.warm_up()
        with pytest.raises(InputError, match=r"prompt: .*the prompt 'plain' of .* expects 'Entity: TITLE'"):
            retriever.retrieve("x", k=1, prompt="plain")
        with pytest.raises(InputError, match=r"prompt: .*the prompt 'mention' of "):
            retriever.link(Mention("x"), k=1)
        with pytest.raises(InputError, match=r"prompt: .*the prompt 'plain' of "):
            retriever.score("x", "Nile", prompt="plain")


def test_the_end_token_that_a_prompt_shows_must_be_the_indexes(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", max_positions=512)
    (checkpoint / "genret.json").unlink()
    behind = Rendering(context="Entity:", prefix=" ")
    by_end = make_index(tmp_path / "text", TextTokenizer.load(checkpoint), rendering=behind)
    Retriever.open(by_end, checkpoint).close()
    with pytest.raises(IndexMismatchError, match=r"as 'Entity: TITLE' and '</s>', but .* 'few-shot' of .*"):
        Retriever.open(by_end, checkpoint, prompt="few-shot")
    on_lines = replace(behind, end_token="\n")
    by_line = make_index(tmp_path / "line", TextTokenizer.load(checkpoint), rendering=on_lines)
    with Retriever.open(by_line, checkpoint, prompt="few-shot") as retriever:
        assert retriever.index.end_token_id == retriever.tokenizer.token_id("Ċ")
        assert retriever.retrieve("x", k=1)[0].candidates
        assert retriever.retrieve("x", k=1, prompt="plain")[0].candidates, "it says nothing of ends"


def test_an_unknown_default_prompt_lists_the_known_ones(index: Path, checkpoint: Path) -> None:
    with pytest.raises(InputError, match=r"prompt: unknown template 'x'; known: \['annotate', 'few-shot'"):
        Retriever.open(index, checkpoint, prompt="x")
    with pytest.raises(InputError, match=r"prompt: 'chat' needs a checkpoint with a chat template .*; known"):
        Retriever.open(index, checkpoint, prompt="chat")


def test_parts_of_a_checkpoint_that_cannot_be_used_are_refused(
    index: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr("genret.retrieval.index.reader.Index.close", lambda self: closed.append(True))
    settings, config, weights = (copy / name for name in ("genret.json", "config.json", "model.safetensors"))
    sound = settings.read_bytes(), config.read_bytes()
    settings.write_text('{"format_version": 9}')
    assert refusal(ModelError, index, copy) == (f"{settings}: malformed: format_version: expected 1, got 9")
    settings.write_bytes(sound[0])
    config.write_text(json.dumps({**json.loads(sound[1]), "model_type": "mamba"}))
    refusal(ModelError, index, copy, "model type 'mamba' is not supported")
    config.write_bytes(sound[1])
    weights.write_bytes(weights.read_bytes()[:-100])
    refusal(ModelError, index, copy)
    weights.unlink()
    refusal(ModelError, index, copy, "no *.safetensors weights")
    torch.save({"x": torch.zeros(1)}, copy / "pytorch_model.bin")
    refusal(ModelError, index, copy, "only pickled weights (pytorch_model.bin)")
    config.unlink()
    refusal(ModelError, index, copy, "no config.json")
    (copy / "tokenizer.json").unlink()
    refusal(ModelError, index, copy, "no tokenizer.json in this directory (a fast tokenizer is needed")
    assert closed == [True] * 7, "every refusal closes the index"


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"device": "abacus"}, ModelError, "unknown device 'abacus'"),
        ({"dtype": "int3"}, ModelError, "dtype must be 'auto' or one of"),
        ({"device": "cpu", "dtype": "float16"}, ModelError, "float16 is not computed on a CPU"),
        ({"num_threads": "2"}, InputError, "num_threads: must be an integer of at least 1, got '2'"),
        ({"grammar_cache_bytes": -1}, InputError, "grammar_cache_bytes: must be an integer of at least 0"),
        ({"devise": "cpu"}, InputError, "devise: there is no such option; did you mean device?"),
        (
            {"draft_model": 5},
            InputError,
            "model: must be a checkpoint directory, a file or a hub id",
        ),
        ({"engine_options": {"x": 1}}, InputError, "engine_options: are for an engine, and none is named"),
    ],
)
def test_wrong_options(
    index: Path, checkpoint: Path, options: dict[str, object], kind: type[GenretError], message: str
) -> None:
    refusal(kind, index, checkpoint, message, **options)


def test_hub_checkpoint_brings_its_prompts_and_rendering(
    index: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hub id, genret.json is read from the folder the tokenizer was fetched into."""
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda model_id, **options: str(checkpoint))
    loaded: list[object] = []

    def load(place: object, *options: object) -> object:
        loaded.append(place)
        return HFLanguageModel.load(checkpoint)

    from genret.decoding.model.hf_model import HFLanguageModel

    monkeypatch.setattr("genret.retrieval.retriever.load_model", load)
    with Retriever.open(index, "someone/tiny") as retriever:
        assert retriever.config.rendering == checkpoint_config().rendering
        assert retriever.config.prompt(None).prefix == "<query>"
    assert loaded == ["someone/tiny"]


@pytest.mark.parametrize("opened", [True, False], ids=["open", "path"])
@pytest.mark.parametrize("loaded", [True, False], ids=["tokenizer", "checkpoint"])
def test_it_holds_every_row_after_the_index_was_closed(
    index: Path, checkpoint: Path, opened: bool, loaded: bool
) -> None:
    tokenizer = TextTokenizer.load(checkpoint) if loaded else str(checkpoint)
    with Index.open(index) as reader:
        device = "cpu" if loaded else torch.device("cpu")
        trie = title_trie(reader if opened else str(index), tokenizer, device=device)
        assert reader.entity(0).title, "an index that was given open stays open"
        rows = [reader.row_token_ids(rank) for rank in range(reader.num_rows)]
        vocab_size = reader.vocab_size
    assert trie.num_rows == len(rows)
    assert trie.vocab_size == vocab_size
    assert trie.device == torch.device("cpu")
    for rank, row in enumerate(rows):
        state = trie.start(torch.zeros(1, dtype=torch.int64))
        for token in row:
            state = trie.advance(state, torch.tensor([token]))
        assert trie.is_final(state).tolist() == [True]
        assert trie.row(state).tolist() == [rank]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"vocab_size": 0}, InputError, r"vocab_size: must be in \[1, 2147483647\], got 0"),
        ({"vocab_size": "512"}, InputError, "vocab_size: must be an integer, got '512'"),
        ({"device": "abacus"}, ModelError, "unknown device 'abacus'"),
        ({"tokenizer": object()}, InputError, "tokenizer: must be a checkpoint directory.*, got object"),
        ({"index": None}, InputError, "index: must be the path of an index directory, got NoneType"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_an_argument_is_refused_by_name(
    index: Path, checkpoint: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        title_trie(**{"index": index, "tokenizer": checkpoint, **options})
