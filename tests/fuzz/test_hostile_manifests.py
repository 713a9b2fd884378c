"""Manifests that no builder wrote, in directories whose names fit them: refused by name, never obeyed."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from genret.retrieval.errors import GenretError, IndexDirectoryError, IndexFormatError
from genret.retrieval.index.layout import FORMAT_VERSION
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from tests.fuzz.damage import CURRENT, MANIFEST, Damage, Kind, places_in, write_damaged
from tests.fuzz.rich_index import build_rich
from tests.index_fixtures import files_of

Document = dict[str, Any]

HUGE = 10**30

_NUMBERS = (-1, 0, 1, 2**31, 2**32, 2**63, HUGE, 1e308, 0.5)
_TEXTS = ("", "x", "\0", "\ud800", "../" * 20 + "etc/passwd", "/etc/passwd", "x" * 100_000)
_HOSTILE_VALUES: tuple[Any, ...] = (None, True, *_NUMBERS, *_TEXTS, [], {}, [[]], [None], {"": None})
_PATHS = ("../../x", "/etc/passwd", "rows/../../x", "rows//x", "./trie.arrow", "rows/", "", ".", "..")
_NO_NAMES = ("C:\\x", "a\0b", "\ud800", "trie.arrow\n", "x" * 10_000, "unexpected.arrow", "manifest.json")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return files_of(build_rich(tmp_path_factory.mktemp("rich"))[0])


def install(index: Path, sound: dict[str, bytes], text: str) -> Path:
    write_damaged(index, sound, sound, Damage(MANIFEST, Kind.TEXT, text=text, refit=True))
    return index


def document(sound: dict[str, bytes]) -> Document:
    parsed: Document = json.loads(sound[MANIFEST])
    return parsed


_COUNTS = (-1, 0, 1, 2**31, HUGE, 1.0, "1", None)
# What may not stand at a place of a manifest.
VALUES: dict[str, tuple[Any, ...]] = {
    "files": ([], [1]),
    "files.0.name": (*_PATHS, *_NO_NAMES),
    "files.0.xxh3_128": (None,),
    "files.0.bytes": (HUGE, 0),
    "buckets": ([], "x"),
    "buckets.0.length": (0,),
    "buckets.-1.length": (HUGE,),
    "buckets.0.rows": (2**62,),
    "tokenizer.vocab_size": (2**40, 70_000, True),
    "stored_ids": (False,),
    "stored_aliases": (False,),
    "metadata": (3, [1, 2, 3, 4, 5], [], [[], [], [], [], []]),
    "metadata.0.name": (5, "", "title", "\ud800"),
    "metadata.0.type": ("object", "float"),
    "history": ([], [1]),
    "history.0.operation": ("destroy",),
    "history.0.records": (0.5,),
    "weight_column": ("\ud800", "title", []),
    "rendering": (None,),
    "rendering.prefix": (["x"],),
    "format_version": (True, float(FORMAT_VERSION), HUGE, None, [2]),
    "counts.entities": _COUNTS,
    "counts.rows": _COUNTS,
    "counts.nodes": _COUNTS,
}


def put(at: str, value: Any) -> Callable[[Document], object]:
    *path, last = (int(step) if step.lstrip("-").isdigit() else step for step in at.split("."))
    return lambda manifest: reduce(getitem, path, manifest).__setitem__(last, value)


def last_bucket_of(tokens: int) -> Callable[[Document], object]:
    return lambda d: (d["buckets"][-1].update(length=tokens), d["counts"].update(depth=tokens))


CHANGES: dict[str, Callable[[Document], object]] = {
    **{f"{at} is {value!a:.20}": put(at, value) for at, values in VALUES.items() for value in values},
    "file listed twice": lambda d: d["files"].append(d["files"][0]),
    "file not listed": lambda d: d["files"].pop(),
    "file without a digest": lambda d: d["files"][0].pop("xxh3_128"),
    "bucket twice": lambda d: d["buckets"].append(d["buckets"][-1]),
    "bucket out of order": lambda d: d["buckets"].reverse(),
    "bucket of 2**31 tokens": last_bucket_of(2**31),
    "bucket of many tokens": last_bucket_of(2**31 - 1),
    "metadata twice": lambda d: d["metadata"].append(d["metadata"][0]),
    "metadata in another order": lambda d: d["metadata"].reverse(),
    "history endless": lambda d: d.update(history=d["history"] * 2000),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_hostile_manifest_is_refused(
    sound: dict[str, bytes], tmp_path: Path, change: Callable[[Document], object]
) -> None:
    altered = document(sound)
    change(altered)
    index = install(tmp_path / "index", sound, json.dumps(altered))
    for digests in (True, False):
        with pytest.raises(IndexDirectoryError):
            Index.open(index, verify_digests=digests)
    try:
        assert not verify(index).ok
    except IndexDirectoryError:
        return


@pytest.mark.parametrize("name", ["../../outside", "{}/outside"])
def test_files_outside_the_version_are_not_even_looked_at(
    sound: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    altered = document(sound)
    entry = next(file for file in altered["files"] if file["name"] == "trie.arrow")
    altered["files"].append({**entry, "name": name.format(tmp_path)})
    altered["files"].remove(entry)
    (tmp_path / "outside").write_bytes(sound["trie.arrow"])
    index = install(tmp_path / "index", sound, json.dumps(altered))
    (index / "outside").write_bytes(sound["trie.arrow"])
    with pytest.raises(IndexFormatError, match=r"manifest\.json: files: expected the name of a file of this"):
        Index.open(index)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "not a manifest"),
        ("[" * 200_000, "nested too deeply"),
        ('{"format": -Infinity}', "-Infinity is no number"),
        ('{"format": 1, "format": 2}', "'format' stands there twice"),
        ("9" * 10_000, "not valid JSON"),
        ('"\ud800"', "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
    ],
)
def test_what_is_no_strict_json_is_refused(
    sound: dict[str, bytes], tmp_path: Path, text: str, message: str
) -> None:
    index = install(tmp_path / "index", sound, text)
    for action in (Index.open, verify):
        with pytest.raises(IndexFormatError, match=re.escape(message)) as caught:
            action(index)
        assert MANIFEST in str(caught.value)


def test_an_endless_manifest_or_pointer_is_refused_unread(sound: dict[str, bytes], tmp_path: Path) -> None:
    index = install(tmp_path / "index", sound, sound[MANIFEST].decode())
    manifest = next(index.rglob(MANIFEST))
    with manifest.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        IndexFormatError, match=r"manifest\.json: expected at most \d+ bytes, got 1099511627776"
    ):
        Index.open(index)
    with (index / CURRENT).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(IndexFormatError, match="CURRENT: expected at most 4096 bytes"):
        Index.open(index)


def _mutants(sound: dict[str, bytes], number: int, seed: int) -> Iterator[str]:
    generator = random.Random(seed)
    for _ in range(number):
        altered = document(sound)
        for _ in range(generator.choice([1, 1, 1, 2, 4])):
            container, key = generator.choice(list(places_in(altered)))
            action = generator.randrange(4)
            if action == 0:
                del container[key]
            elif action == 1 and isinstance(container, list):
                container.append(container[key])
            else:
                container[key] = copy.deepcopy(generator.choice(_HOSTILE_VALUES))
            if not altered:
                break
        yield json.dumps(altered)


def _try(sound: dict[str, bytes], index: Path, text: str) -> int:
    """Return how many of three ways in refused a manifest; an untyped error passes through."""
    install(index, sound, text)
    refused = 0
    for action in (Index.open, lambda place: Index.open(place, verify_digests=False), verify):
        try:
            action(index)
        except GenretError:
            refused += 1
    return refused


MUCH = pytest.param(6_000, 4, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.mark.parametrize(("number", "seed"), [(250, 3), MUCH])
def test_random_manifests_end_in_typed_errors(
    sound: dict[str, bytes], tmp_path: Path, number: int, seed: int
) -> None:
    refused = [_try(sound, tmp_path / "index", text) for text in _mutants(sound, number, seed)]
    assert refused.count(3) > 150
