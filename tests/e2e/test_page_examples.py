"""Examples of README.md and docs/{disc,beam-search,numbers,ranking}.md run as they stand.

Those of the README are answered by the default model, whose weights are a package of their own; those of the
pages by the small one, as the pages say.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from genret.retrieval.defaults import DEFAULT_MODEL_VARIABLE, missing_weights
from tests.sample_index import build_sample_index
from tests.service.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader stands: the sample index, and the data that came with the code."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "data").symlink_to(ROOT / "data")
    build_sample_index(folder / "sample.index", with_queries=True)
    return folder


@pytest.fixture(scope="module")
def ranked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader of docs/ranking.md stands: the sample index with past queries."""
    folder = tmp_path_factory.mktemp("ranked")
    (folder / "data").symlink_to(ROOT / "data")
    commands = re.findall(r"^genret (build .*)$", text_of("docs/ranking.md"), re.MULTILINE)
    genret(commands[0], folder)  # the second one weighs the model too
    return folder


@pytest.fixture(scope="module")
def built_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader of the README stands, with what its commands build with the default model."""
    if (missing := missing_weights()) is not None:
        pytest.skip(f"the default model's weights are not installed: {missing}")
    folder = tmp_path_factory.mktemp("readme")
    (folder / "data").symlink_to(ROOT / "data")
    page = text_of("README.md").replace("\\\n", " ")
    commands = re.findall(r"^(?:\$ )?genret (build data/.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(DEFAULT_MODEL_VARIABLE, raising=False)
        for command in commands:
            genret(command, folder)
    return folder


@pytest.fixture
def readme_folder(built_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, and no model is named."""
    monkeypatch.delenv(DEFAULT_MODEL_VARIABLE, raising=False)
    return built_folder


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def run(code: str, folder: Path) -> str:
    """Return what the code prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def genret(command: str, folder: Path) -> str:
    """Return what a command prints."""
    return run(
        f"from genret.service.main import cli; cli({shlex.split(command)!r}, standalone_mode=False)", folder
    )


def example(word: str) -> str:
    """Return the one block of the README that uses a name."""
    (found,) = [b for b in re.findall(r"```python\n(.*?)```", text_of("README.md"), re.DOTALL) if word in b]
    return found


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        pytest.param("disc", 5, marks=pytest.mark.slow),
        pytest.param("beam-search", 6, marks=pytest.mark.slow),
        ("numbers", 3),
    ],
)
def test_the_examples_of_a_page_print_what_it_says(folder: Path, name: str, examples: int) -> None:
    page = text_of(f"docs/{name}.md")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed = re.findall(r"```python\n.*?```\n```\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == examples
    assert len(printed) == examples
    assert run("\n".join(blocks), folder) == "".join(printed)


@pytest.mark.slow
def test_the_examples_of_the_ranking_page_print_what_it_says(ranked_folder: Path) -> None:
    page = text_of("docs/ranking.md")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed = re.findall(r"```python\n.*?```\n```\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == len(printed) == 3
    assert run("\n".join(blocks), ranked_folder) == "".join(printed)
    ((command, told),) = re.findall(r"^\$ genret (tune [^\n]*)\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    lines = genret(f"{command} --dry-run", ranked_folder).splitlines()
    shown = [line for line in told.splitlines() if line != "…"]
    assert len(shown) > 8
    assert [line for line in lines if line in shown] == shown


@pytest.mark.slow
def test_the_first_session_of_the_readme_prints_what_it_says(readme_folder: Path) -> None:
    """Titles, entities and reasons; numbers are those of one processor, and of another a little different."""
    asked = re.findall(
        r"^\$ genret (ask [^\n|]*?)(?: \|[^\n]*)?\n(.*?)(?=^\$|^```)",
        text_of("README.md"),
        re.MULTILINE | re.DOTALL,
    )
    assert len(asked) == 2
    for command, printed in asked:
        as_json = command if "--json" in command else f"{command} --json"
        answer = json.loads(genret(as_json, readme_folder))
        titles = [candidate["title"] for candidate in answer["candidates"]]
        assert titles == (re.findall(r"│ \d │ (.*?) +│", printed) or [json.loads(printed)[0]])


@pytest.mark.slow
def test_the_example_of_generate_prints_titles(readme_folder: Path) -> None:
    lines = run(example("TitleTrieLogitsProcessor"), readme_folder).splitlines()
    assert len(lines) == 4
    assert lines[0] == "['Munich']"


@pytest.mark.slow
def test_the_example_of_the_library_prints_an_answer_a_mass_and_shares(readme_folder: Path) -> None:
    answer, mass, shares = run(example("retriever.retrieve("), readme_folder).splitlines()
    assert re.fullmatch(r"Munich -0\.\d+ 0\.\d+ \{'\w+': .*'model': -0\.\d+.*\} 0\.\d+", answer)
    assert re.fullmatch(r"0\.\d+ \+/- 0\.\d+", mass)
    assert re.match(r"\[\('\w[^']*', 0\.\d+\), ", shares)


@pytest.mark.slow
def test_the_example_of_a_json_answer_prints_a_title_and_its_entity(readme_folder: Path) -> None:
    (schema,) = re.findall(r"```json\n(.*?)```", text_of("README.md"), re.DOTALL)
    (readme_folder / "entity.json").write_text(schema, encoding="utf-8")
    (line,) = run(example("retriever.answer("), readme_folder).splitlines()
    source = json.loads(schema)["properties"]["source"]["const"]
    assert re.fullmatch(rf"{source} /title Munich \['\w+\.munich'\]", line)


@pytest.mark.slow
def test_the_example_of_the_client_library_prints_what_a_server_finds(readme_folder: Path) -> None:
    code = example("AsyncRetrievalClient")
    with ServerProcess(str(readme_folder / "sample.index")) as server:
        lines = run(code.replace("127.0.0.1:50051", server.address()), readme_folder).splitlines()
    assert re.fullmatch(r"\w.* [0-9a-f]{32}", lines[0])
    assert len(lines) == 3
    assert "german city where oktoberfest is held -> Munich" in lines[1:]
