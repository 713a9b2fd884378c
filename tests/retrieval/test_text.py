"""Tokenising user text, titles in context, end tokens, fingerprints, broken tokenizer folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.text import Rendering, TextTokenizer
from genret.service.main import cli
from tests.checkpoints import END, SPECIAL_TOKENS, TITLE, save_tokenizer, train_tokenizer
from tests.commands import refusal
from tests.table_retrievers import TOKENIZER

SPECIAL_IDS = set(range(len(SPECIAL_TOKENS)))


def unigram() -> Tokenizer:
    """Special tokens are pieces here, with the best score of all, as in every SentencePiece checkpoint."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("<unused>", 0.0)]
    pieces += [(character, -3.0) for character in "abcdeknpsu</>"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unused>", "<extra>"])
    tokenizer.add_tokens(["kap"])
    return tokenizer


def word_level() -> Tokenizer:
    vocabulary = {"<unk>": 0, "</s>": 1, "<pad>": 2, "a": 3, "b": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "</s>", "<pad>"])
    tokenizer.add_tokens(["b!"])
    return tokenizer


@given(st.lists(st.sampled_from([*SPECIAL_TOKENS, "a", " ", "<", "s>", "ü", "\n"]), max_size=8).map("".join))
def test_no_text_becomes_a_special_token_and_none_is_lost(text: str) -> None:
    ids = TOKENIZER.encode_text(text)
    assert not SPECIAL_IDS & set(ids)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.encode_texts([text, "x", text]) == [ids, TOKENIZER.encode_text("x"), ids]


def prefixed(add_prefix_space: bool) -> Tokenizer:
    tokenizer = train_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    return tokenizer


PREFIXED, UNPREFIXED = (TextTokenizer(prefixed(blank), END, "tiny") for blank in (True, False))


@given(st.text('a{":} ü', min_size=1))
def test_bytes_stand_behind_other_text(text: str) -> None:
    """No blank is put before them, whatever the tokenizer puts before a text of its own."""
    ids = PREFIXED.encode_bytes(text.encode())
    assert PREFIXED.decode(ids) == text
    if not text.startswith(" "):  # which would stand with the line break
        assert ids == UNPREFIXED.encode_bytes(text.encode()) == UNPREFIXED.encode_text(text)
    assert PREFIXED.encode_bytes(b"\xff") is None


def test_special_pieces_of_unigram_models_are_out_of_reach_of_text() -> None:
    tokenizer = TextTokenizer(unigram(), "</s>", "unigram")
    special = {0, 1, 4, tokenizer.token_id("<extra>")}
    for text in ("a </s>", "</s>", "<unused>", "<pad>a</s>b", "<extra>"):
        assert not special & set(tokenizer.encode_text(text)), text
    assert tokenizer.decode(tokenizer.encode_text("a </s>")) == "a </s>"
    assert tokenizer.encode_markup("a</s>")[-1] == 1
    row = tokenizer.encode_titles(["a </s>"], Rendering())[0]
    assert row.index(1) == len(row) - 1
    # Nothing else moves: ids of ordinary pieces and of added tokens are the same in both voices.
    assert tokenizer.encode_text("a kap b") == tokenizer.encode_markup("a kap b")


def test_special_words_of_word_level_models_are_out_of_reach_of_text() -> None:
    tokenizer = TextTokenizer(word_level(), "</s>", "words")
    assert tokenizer.encode_text("a </s> b <pad> b!") == [3, 0, 4, 0, tokenizer.token_id("b!")]
    assert tokenizer.encode_markup("a </s> b <pad>") == [3, 1, 4, 2]


def test_titles_are_tokenised_in_context() -> None:
    rendering = Rendering(context="Entity:", prefix=" <", suffix=">", end_token=END)
    rows = TOKENIZER.encode_titles(["Paris", "Marie Curie", ""], rendering)
    context = TOKENIZER.encode_text("Entity:")
    for title, row in zip(["Paris", "Marie Curie", ""], rows, strict=True):
        assert context + row[:-1] == TOKENIZER.encode_text(f"Entity: <{title}>")
        assert row[-1] == TOKENIZER.token_id(END)


def test_unstable_boundary_gives_no_row() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2, "ab": 3, "</s>": 4}, [("a", "b")]))
    tokenizer.add_special_tokens(["</s>"])
    text = TextTokenizer(tokenizer, "</s>", "merging")
    rows = text.encode_titles(["b", "c", "bc", "a", ""], Rendering(context="a"))
    assert rows == [None, [2, 4], None, [0, 4], [4]]


def test_end_token_is_the_renderings_then_the_checkpoints_then_a_common_one() -> None:
    tokenizer = train_tokenizer()
    assert TextTokenizer(tokenizer, "<pad>", "x").end_token_id(Rendering()) == 0
    assert TextTokenizer(tokenizer, "<pad>", "x").end_token_id(Rendering(end_token=TITLE)) == 4
    assert TextTokenizer(tokenizer, None, "x").end_token_id(Rendering()) == 1  # </s> is a common name


def test_end_token_errors_name_the_tokenizer() -> None:
    with pytest.raises(InputError, match=r"end_token: '<stop>' is not in the vocabulary of tiny"):
        TOKENIZER.end_token_id(Rendering(end_token="<stop>"))
    nameless = TextTokenizer(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), None, "words")
    with pytest.raises(InputError, match=r"the tokenizer words names no end-of-sequence token; name one"):
        nameless.end_token_id(Rendering())


@pytest.mark.parametrize("declared", ["</s>", {"content": "</s>", "lstrip": False}])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_declared_end_token_is_read(tmp_path: Path, declared: object, name: str) -> None:
    train_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text(json.dumps({"eos_token": declared}))
    assert TextTokenizer.load(tmp_path).end_token == "</s>"


def test_fingerprint_survives_save_and_load(tmp_path: Path) -> None:
    save_tokenizer(train_tokenizer(), tmp_path)
    loaded = TextTokenizer.load(tmp_path)
    assert loaded.fingerprint == TOKENIZER.fingerprint
    assert TextTokenizer.load(tmp_path / "tokenizer.json").fingerprint == TOKENIZER.fingerprint
    again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    again.enable_padding(length=20)
    again.enable_truncation(3)
    used = TextTokenizer(again, END, "padded")
    assert used.fingerprint == TOKENIZER.fingerprint
    assert used.encode_text("Paris, Texas") == TOKENIZER.encode_text("Paris, Texas")


def test_fingerprint_survives_transformers(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(), eos_token=END).save_pretrained(tmp_path)
    assert TextTokenizer.load(tmp_path).encode_text("Paris") == TOKENIZER.encode_text("Paris")
    first = TextTokenizer.load(tmp_path).fingerprint
    PreTrainedTokenizerFast.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    assert TextTokenizer.load(tmp_path / "again").fingerprint == first


def test_fingerprint_tells_tokenizers_apart() -> None:
    other = train_tokenizer(vocab_size=300)
    added = train_tokenizer()
    added.add_special_tokens(["<more>"])
    fingerprints = {TextTokenizer(t, END, "x").fingerprint for t in (train_tokenizer(), other, added)}
    assert len(fingerprints) == 3


def test_vocabulary_size_counts_holes() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 7000}, unk_token="a"))
    assert TextTokenizer(tokenizer, "</s>", "x").vocab_size == 7001


SOUND = train_tokenizer().to_str().encode()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer.json in this directory"),
        ({"tokenizer.json": b"{}"}, "not a readable tokenizer.json"),
        ({"tokenizer.json": b"no json"}, "not a readable tokenizer.json"),
        *(
            ({"tokenizer.json": SOUND, "tokenizer_config.json": content}, r"_config\.json: malformed: ")
            for content in (b"[]", b"{", b"\xff\xfe", b"3")
        ),
    ],
)
def test_folder_without_a_usable_tokenizer(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message) as error:
        TextTokenizer.load(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_hub_id_is_fetched_once_and_read_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tokenizer(train_tokenizer(), tmp_path)
    asked: list[str] = []

    def fetch(model_id: str, **options: object) -> str:
        asked.append(model_id)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert TextTokenizer.load("someone/tiny").source == str(tmp_path)
    assert asked == ["someone/tiny"]


def test_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model_id: str, **options: object) -> str:
        raise ConnectionError("no route\nplease check your connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ModelError) as error:
        TextTokenizer.load("someone/tiny")
    assert str(error.value) == (
        f"no directory 'someone/tiny' in {Path.cwd()}, and it could not be fetched from the hub: no route; "
        "name a local model by its path, others as OWNER/NAME"
    )
    monkeypatch.setenv("GENRET_DEFAULT_MODEL", "someone/tiny")
    assert "'someone/tiny' ($GENRET_DEFAULT_MODEL) in" in refusal(cli, "doctor")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "rendering: expected an object, got list"),
        ({"prefix": " ", "sufix": ""}, r"rendering: unknown keys \['sufix'\]"),
        ({"prefix": None}, r"rendering\.prefix: must be text, got NoneType"),
        ({"end_token": 3}, r"rendering\.end_token: must be text, got int"),
        ({"suffix": "\ud800"}, r"rendering\.suffix: not valid Unicode"),
    ],
)
def test_malformed_rendering(value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Rendering.from_json(value)


def test_an_end_token_may_be_given_as_text() -> None:
    assert TOKENIZER.end_token_id(Rendering(end_token="\n")) == TOKENIZER.token_id("Ċ")
    assert TOKENIZER.text_token_id("\n") == TOKENIZER.token_id("Ċ")
    assert TOKENIZER.text_token_id("\n\nx") is None
    with pytest.raises(InputError, match="nor text that is one token of it"):
        TOKENIZER.end_token_id(Rendering(end_token="\n\nx"))


@pytest.mark.parametrize("end", [None, END, "Ċ", "\n"])
def test_ends_of_texts_and_of_lines_are_beyond_doubt(end: str | None) -> None:
    assert TOKENIZER.doubt_of_end(Rendering(end_token=end)) is None


def test_a_letter_as_end_token_is_doubted_and_the_right_ones_are_named() -> None:
    """Ċ is a line break in byte-level vocabularies; elsewhere it is a letter of Maltese."""
    vocabulary = {piece: i for i, piece in enumerate(["<unk>", "</s>", "a", "b", "\n", "Ċ"])}
    plain = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    plain.add_special_tokens(["</s>"])
    tokenizer = TextTokenizer(plain, "</s>", "letters")
    doubt = tokenizer.doubt_of_end(Rendering(end_token="Ċ"))
    assert "the end token 'Ċ' is the text 'Ċ' in the vocabulary of letters" in doubt
    assert "there '</s>' ends a text and '\\n' ends a line" in doubt
    assert tokenizer.doubt_of_end(Rendering(end_token="\n")) is None


@pytest.mark.parametrize("make", [unigram, word_level, train_tokenizer, lambda: prefixed(True)])
@given(text=st.text(st.sampled_from("an aé€\t😀Z"), max_size=300))
def test_no_token_holds_more_bytes_than_the_longest(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = _made(make)
    assert len(text.encode()) <= tokenizer.max_token_bytes * max(1, len(tokenizer.encode_text(text)))


@cache
def _made(make: Callable[[], Tokenizer]) -> TextTokenizer:
    return TextTokenizer(make(), END, "made")


def test_longest_token_in_bytes_is_known_where_every_byte_is_kept() -> None:
    kept = _made(train_tokenizer)
    pieces = (kept.token_name(i) for i in range(kept.vocab_size))
    assert kept.max_token_bytes == max(map(len, pieces))
    assert _made(word_level).max_token_bytes == _made(unigram).max_token_bytes == 256
