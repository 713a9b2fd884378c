"""Completion against an oracle that looks at every name, on random catalogues with typing errors."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from genret.retrieval.complete_types import MAX_PREFIX, CompleteRequest
from genret.retrieval.completion import completer, name_lists, sorted_words
from genret.retrieval.errors import InputError
from genret.retrieval.index.reader import EntityTexts, Index
from genret.retrieval.sources.columns import ColumnMapping
from tests.complete_oracle import NamedEntity, complete
from tests.index_fixtures import build, character_tokenizer

LETTERS = "abcdeé東ß1"


def _word(random: Random, long: bool) -> str:
    return "".join(random.choices(LETTERS, k=random.choice([1, 2, 3, 4, 8, 9, 12] if long else [1, 2, 3])))


def _catalogue(folder: Path, random: Random, has_weights: bool) -> Index:
    words = [_word(random, long=True) for _ in range(random.randint(5, 30))]
    lines = ["entity_id\ttitle\taliases\tkind\tfame"]
    for number in range(random.randint(1, 80)):
        forms = [
            random.choice([" ", "-", " the "]).join(random.choices(words, k=random.randint(1, 6)))
            for _ in range(random.choice([1, 1, 2, 4]))
        ]
        forms.append(random.choice(["!!!", "C++", "Ab", forms[0].upper()]))
        lines.append(
            f"Q{number}\t{forms[0]}\t{'|'.join(forms[1:])}\t{random.choice('xy')}\t{random.randint(0, 3)}"
        )
    mapping = ColumnMapping(weight="fame" if has_weights else None)
    summary = build(folder, lines, character_tokenizer("".join(lines)), mapping=mapping, evidence=None)
    return Index.open(summary.index)


def _entities(index: Index) -> list[NamedEntity]:
    forms: list[list[str]] = [[] for _ in range(index.num_entities)]
    for numbers, texts in EntityTexts(index).batches():
        for number, text in zip(numbers.tolist(), texts, strict=True):
            forms[number].append(text)
    ids = [index.entity(number).entity_id for number in range(index.num_entities)]
    weights = [1.0] * len(ids) if index.weights is None else index.weights.tolist()
    return [NamedEntity(*one) for one in zip(ids, map(tuple, forms), weights, strict=True)]


def _typed(random: Random, entities: list[NamedEntity]) -> str:
    text = random.choice(random.choice(entities).forms)
    words = text.split(" ")
    if random.random() < 0.3:
        random.shuffle(words)
        text = " ".join(words[: random.randint(1, len(words))])
    letters = list(text[: random.randint(0, len(text))])
    for _ in range(random.choice([0, 0, 1, 1, 2, 3])):
        at = random.randrange(len(letters) + 1)
        match random.randrange(4):
            case 0:
                letters.insert(at, random.choice(LETTERS + "z "))
            case 1 if at < len(letters):
                letters[at] = random.choice(LETTERS + "z")
            case 2 if at < len(letters):
                del letters[at]
            case 3:
                letters[at : at + 2] = letters[at : at + 2][::-1]
    return "".join(letters)


@pytest.mark.parametrize("seed", range(8))
def test_completions_are_those_of_the_oracle(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # what is for millions of names is for a few too
        monkeypatch.setattr(name_lists, "_FIRST_PLACES", 2)
        monkeypatch.setattr(name_lists, "_MORE", 2)
        monkeypatch.setattr(sorted_words, "_MANY_CHILDREN", 0)
        monkeypatch.setattr(sorted_words, "_MANY_WORDS", 1)
        monkeypatch.setattr(name_lists, "_NUM_MARKS", 8)
        monkeypatch.setattr(completer, "_FEW_NAMES", 3)
    random = Random(seed)
    with _catalogue(tmp_path, random, has_weights=seed % 3 > 0) as index:
        entities = _entities(index)
        kinds = [index.entity(number).metadata["kind"] for number in range(len(entities))]
        for _ in range(25):
            prefix, k = _typed(random, entities), random.choice([1, 2, 5, 100])
            options, allowed = {}, [True] * len(entities)
            if random.random() < 0.3:
                options["filter"], allowed = "kind = 'x'", [kind == "x" for kind in kinds]
            if random.random() < 0.3:
                denied = random.choice(entities).entity_id
                options["deny_ids"] = (denied,)
                allowed = [a and e.entity_id != denied for a, e in zip(allowed, entities, strict=True)]
            found = index.complete(prefix, k, **options).completions
            expected = complete(entities, prefix, k, allowed)
            assert [(one.entity_id, one.form, one.errors) for one in found] == expected, prefix
            for one in found:
                assert all(0 <= span.begin < span.end <= len(one.form) for span in one.spans)
                assert one.spans or not prefix.strip()


@pytest.mark.parametrize(
    ("prefix", "form", "marked"),
    [
        ("łó", "Łódź Główna", ["Łó"]),
        ("glowna lod", "Łódź Główna", ["Łód", "Główna"]),
        ("strasse", "Große Straße", ["Straße"]),
        ("gros", "Große Straße", ["Groß"]),
        ("gorsse", "Große Straße", ["Große"]),
        ("o'co", "Sinéad O’Connor", ["O’Co"]),
        ("e\u0301t", "Été", ["Ét"]),
    ],
)
def test_spans_are_of_the_form_as_it_is_written(
    prefix: str, form: str, marked: list[str], tmp_path: Path
) -> None:
    summary = build(tmp_path, ["title", form], character_tokenizer(form), evidence=None)
    with Index.open(summary.index) as index:
        (found,) = index.complete(prefix).completions
        assert [found.form[span.begin : span.end] for span in found.spans] == marked


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"prefix": "a" * (MAX_PREFIX + 1)}, "prefix"),
        ({"prefix": None}, "prefix"),
        ({"prefix": "\ud800"}, "prefix"),
        ({"prefix": "a", "k": 0}, "k"),
        ({"prefix": "a", "k": 101}, "k"),
        ({"prefix": "a", "order": "fame"}, "order"),
        ({"prefix": "a", "filter": "kind ="}, "filter"),
    ],
)
def test_bad_requests_are_refused(values: dict, field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: "):
        CompleteRequest(**values)
