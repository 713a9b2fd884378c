"""The map, the glossary, CONTRIBUTING and the changelog name what is there: files, names, rooms.

A list of CONTRIBUTING is followed line by line, as far as that is possible without adding anything. Sources
are read, not imported. Links are followed by the build of the site (test_docs_site.py).
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.e2e.pages import ROOT, code, rows, section, text_of

ROOMS = ("decoding", "retrieval", "index_builder", "service")
STUBS = ROOT / "service" / "pb"
LISTS = ("Add a metric", "Add a source format", "Add a model family", "Add a request option")


def product_files() -> Iterator[Path]:
    for room in ROOMS:
        yield from (path for path in (ROOT / room).rglob("*.py") if STUBS not in path.parents)


@cache
def defined(path: Path) -> frozenset[str]:
    """Return the names that a module defines or takes over at its top."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(names)


def strings(file: str, name: str) -> set[str]:
    """Return the strings in what a module assigns to a name at its top."""
    (value,) = [
        node.value
        for node in ast.parse(text_of(file)).body
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == [name]
    ]
    texts = (node.value for node in ast.walk(value) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str)}


@pytest.mark.parametrize("heading", LISTS)
def test_every_line_of_a_list_names_a_file_and_what_it_holds(heading: str) -> None:
    steps = rows(section("CONTRIBUTING.md", heading))
    assert len(steps) >= 5
    for place, holds, advice in steps:
        (file,) = code(place)
        content = text_of(file)
        assert code(holds), place
        for name in code(holds):
            assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", content), f"{file} does not hold {name!r}"
        for further in code(advice):
            if "/" in further:
                assert (ROOT / further).exists(), further


def test_the_list_of_a_request_option_is_complete() -> None:
    """`length_penalty` is spelled in the listed files and nowhere else but where it takes effect.

    `genret.generate` has one of its own: it makes no request.
    """
    example = re.compile(r"length[_-]penalty")
    listed = {code(row[0])[0] for row in rows(section("CONTRIBUTING.md", "Add a request option"))}
    for file in listed:
        assert example.search(text_of(file)), f"{file} spells no option: it is to leave the list"
    spelled_in = [
        *(ROOT / "retrieval").glob("*.py"),
        *(ROOT / "retrieval" / "linking").rglob("*.py"),
        *(p for room in ("service", "proto") for p in (ROOT / room).rglob("*") if STUBS not in p.parents),
    ]
    found = {
        str(path.relative_to(ROOT))
        for path in spelled_in
        if path.suffix in (".py", ".proto", ".html", ".js") and example.search(path.read_text("utf-8"))
    }
    assert found - listed == {"retrieval/generation.py"}


def test_what_the_lists_ask_for_is_there_for_what_exists() -> None:
    formats = strings("retrieval/sources/row_readers.py", "SourceFormat") - {"auto"}
    assert {name for row in rows(section("docs/sources.md", "Formats")) for name in code(row[0])} == formats
    assert strings("tests/catalogue_files.py", "FORMATS") == formats - {"lines"}
    (verified,) = [row for row in rows(text_of("docs/models.md")) if row[0] == "verified"]
    assert set(re.findall(r"\w+", verified[-1])) == strings("decoding/model/architectures.py", "VERIFIED")


def test_commands_of_contributing_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    named = [command.split() for command in code(text_of("CONTRIBUTING.md")) if command.startswith("make ")]
    assert len(named) > 5
    assert {words[1] for words in named} <= targets
    for file in (".ci/run", "benchmarks/disc.py", "tests/decoding/disc"):
        assert file in text_of("CONTRIBUTING.md")
        assert (ROOT / file).exists()


def test_every_term_of_the_glossary_lives_where_it_says() -> None:
    text = text_of("docs/glossary.md").split("## Names in the code that still differ")[0]
    terms: list[str] = []
    for names, meaning, place in rows(text):
        (file,) = code(place)
        assert (ROOT / file).exists(), f"{names}: {file} is not there"
        assert meaning
        terms += re.findall(r"\*\*(.+?)\*\*", names)
    assert len(terms) > 90
    assert len(terms) == len(set(terms)), "one name per thing"


def test_names_that_still_differ_are_still_there() -> None:
    """What was renamed leaves the list."""
    for names, place, _ in rows(section("docs/glossary.md", "Names in the code that still differ")):
        (file,) = code(place)
        assert (ROOT / file).exists(), f"{names}: {file} is not there, and the line may go"
        if names.startswith("`"):
            missing = {name for name in code(names) if name.isidentifier()} - defined(ROOT / file)
            assert not missing, f"{file} has no {missing}: the line may go"


def test_no_further_class_name_stands_for_two_things() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in product_files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    several = {name: files for name, files in places.items() if len(files) > 1}
    table = rows(section("docs/glossary.md", "Class names that stand for several things"))
    listed = {name for row in table for name in code(row[0])}
    assert {name: several[name] for name in several.keys() - listed} == {}, "choose another name"
    assert listed - several.keys() == set(), "they stand for one thing now: their lines may go"


def test_the_map_is_short_and_names_rooms_and_files_that_are_there() -> None:
    text = text_of("docs/architecture.md")
    assert len(text.split()) < 3000
    for name in set(re.findall(rf"`((?:{'|'.join(ROOMS)})[\w./]*)`", text)):
        if "/" in name:
            assert (ROOT / name).exists(), name
            continue
        path = ROOT / name.replace(".", "/")
        above = ROOT / name.rpartition(".")[0].replace(".", "/")
        is_value = name.rpartition(".")[2] in (
            defined(above.with_suffix(".py")) if above.with_suffix(".py").exists() else ()
        )
        assert path.is_dir() or path.with_suffix(".py").exists() or is_value, name
    for name in set(re.findall(r"\s((?:\w+/)+\w+\.py)\b", text)):
        assert (ROOT / name).exists() or any(path.match(f"*/{name}") for path in product_files()), name


def test_every_room_says_what_it_must_not_know() -> None:
    for path in product_files():
        if path.name == "__init__.py":
            said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            assert "must not know" in " ".join(said.split()), path


def test_moved_modules_are_where_the_changelog_says() -> None:
    moves = rows(section("CHANGELOG.md", "Moved modules"))
    assert len(moves) > 10
    for _, now, what in moves:
        path = ROOT / (code(now)[0].replace(".", "/") + ".py")
        assert path.exists(), now
        for name in code(what):
            assert not name.isidentifier() or name in defined(path), f"{now} has no {name}"


def test_the_citation_is_of_this_project() -> None:
    cited = yaml.safe_load(text_of("CITATION.cff"))
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert cited["authors"] == project["authors"]
    assert f"## {cited['version']} - {cited['date-released']}\n" in text_of("CHANGELOG.md")


def test_every_extra_has_its_size() -> None:
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    table = rows(section("docs/install.md", "Extras"))
    assert [code(name)[0] for name, *_ in table] == list(extras)
    assert all(re.fullmatch(r"\d+ MB", size) for _, size, _ in table)


def test_the_tiers_of_the_suite_name_files_that_are_there() -> None:
    from tests.conftest import LONG, QUICK, THOROUGH

    assert [name for name in (*QUICK, *THOROUGH) if not (ROOT / "tests" / name).exists()] == []
    assert [name for name in LONG if not any((ROOT / "tests").rglob(name))] == []
