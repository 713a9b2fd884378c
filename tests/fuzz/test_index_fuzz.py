"""Whatever happens to a file of an index, opening and verifying it end in a typed error.

Damage is done in child processes, which may crash or hang without taking the test with them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from genret.retrieval.errors import GenretError
from genret.retrieval.index.manifest import Manifest
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from tests.fuzz.damage import CURRENT, MANIFEST, Damage, Kind, every_flip, every_odd, sampled
from tests.fuzz.rich_index import build_rich
from tests.index_fixtures import files_of

REPOSITORY = Path(__file__).parents[2]
Versions = tuple[Path, Path]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return build_rich(tmp_path_factory.mktemp("rich"))


def answers(
    versions: Versions, work: Path, damages: Iterable[Damage]
) -> Iterator[tuple[Damage, dict[str, dict[str, str]]]]:
    """Yield every damage to the first version that changed something, with what came of it.

    A child that dies fails the test and names the damage.
    """
    wanted = list(damages)
    assert wanted
    places = (*versions, work / "index")
    child = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.damage_child", *map(str, places)],
        input="".join(damage.to_line() + "\n" for damage in wanted),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    replies = [json.loads(line) for line in child.stdout.splitlines()]
    if child.returncode != 0:
        pytest.fail(f"status {child.returncode} at {wanted[len(replies)]}\n{child.stderr[-3000:]}")
    for damage, reply in zip(wanted, replies, strict=True):
        if reply.pop("changed"):
            yield damage, reply


def untyped(found: dict[str, dict[str, str]]) -> list[str]:
    return [action for action, outcome in found.items() if "untyped" in outcome]


def check_found(damage: Damage, found: dict[str, dict[str, str]]) -> None:
    """Digests find all damage; without them nothing worse than a typed error happens."""
    assert not untyped(found), (damage, found)
    assert "typed" in found["open"], (damage, found)
    assert found["open"]["message"], damage
    assert damage.file in found["open"]["message"], (damage, found)
    assert found["verify"].get("result", "damaged") == "damaged", (damage, found)


def check_survived(damage: Damage, found: dict[str, dict[str, str]]) -> None:
    """Where the manifest fits the damage: what `verify` calls sound can be read completely."""
    assert not untyped(found), (damage, found)
    if "walk" in found:
        assert "result" in found["walk"], (damage, found)


def test_the_index_has_something_of_everything(versions: Versions) -> None:
    sound = files_of(versions[0])
    manifest = Manifest.from_bytes(sound[MANIFEST])
    assert manifest.stored_ids
    assert manifest.stored_aliases
    assert len(manifest.metadata) == 5
    assert manifest.counts.depth > 64
    assert manifest.counts.postings > manifest.counts.rows
    assert {"trie.arrow", "entities.arrow", "postings.arrow"} < set(sound)
    assert verify(versions[0]).ok


def test_sampled_damage_is_found(versions: Versions, tmp_path: Path) -> None:
    checked = 0
    for damage, found in answers(versions, tmp_path, sampled(files_of(versions[0]), 600, seed=1)):
        check_found(damage, found)
        checked += 1
    assert checked > 500


def test_anything_else_in_the_place_of_a_file_is_found(versions: Versions, tmp_path: Path) -> None:
    seen = set()
    for damage, found in answers(versions, tmp_path, every_odd(*map(files_of, versions))):
        check_found(damage, found)
        seen.add((damage.file, damage.kind))
    assert {(CURRENT, Kind.SWAP), (MANIFEST, Kind.PIPE), ("trie.arrow", Kind.SWAP)} < seen


MUCH = [
    pytest.param(seed, 4000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]) for seed in range(10, 16)
]


@pytest.mark.parametrize(("seed", "number"), [(2, 600), *MUCH])
def test_sampled_damage_with_a_fitting_manifest_is_survived(
    versions: Versions, tmp_path: Path, seed: int, number: int
) -> None:
    refused = 0
    damages = sampled(files_of(versions[0]), number, seed, refit=True)
    for damage, found in answers(versions, tmp_path, damages):
        check_survived(damage, found)
        refused += found["verify"].get("result") != "sound"
    assert refused > 200


def every_truncation(sound: dict[str, bytes]) -> Iterator[Damage]:
    for name, data in {**sound, CURRENT: bytes(33)}.items():
        yield from (Damage(name, Kind.TRUNCATE, at) for at in range(len(data)))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("damages", "check"),
    [
        pytest.param(every_flip, check_found, id="flips"),
        pytest.param(every_truncation, check_found, id="truncations"),
        pytest.param(partial(every_flip, refit=True), check_survived, id="flips with a fitting manifest"),
    ],
)
def test_every_damage_is_found_or_survived(
    versions: Versions,
    tmp_path: Path,
    damages: Callable[[dict[str, bytes]], Iterator[Damage]],
    check: Callable[[Damage, dict[str, dict[str, str]]], None],
) -> None:
    for damage, found in answers(versions, tmp_path, damages(files_of(versions[0]))):
        check(damage, found)


def test_the_version_directory_itself_may_be_anything(versions: Versions, tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    (tmp_path / CURRENT).write_text(versions[0].name + "\n")
    place = tmp_path / "versions" / versions[0].name
    for target in ("nowhere", place.name):
        place.symlink_to(target)
        with pytest.raises(GenretError, match="CURRENT"):
            Index.open(tmp_path)
        place.unlink()
    place.write_text("a file")
    with pytest.raises(GenretError, match="CURRENT"):
        Index.open(tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "a/" * 3000, "\ud800", ""])
def test_a_path_that_cannot_be_is_a_typed_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(GenretError):
        Index.open(f"{tmp_path}/{name}")
    with pytest.raises(GenretError):
        verify(f"{tmp_path}/{name}")
