"""docs/linking.md: its commands and its Python run and print what it says, and its tables are the code's.

The README's example of linking runs, too.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from genret.retrieval.linking.documents.corpus import INPUT_FORMATS, SPAN_UNITS, CorpusOptions
from genret.retrieval.linking.documents.input_files import ENDINGS
from genret.retrieval.linking.link_command import link_command
from genret.retrieval.linking.link_options import MENTION_SOURCES, LinkJob, LinkOptions, WorkerOptions
from genret.retrieval.linking.output.folder import is_ours
from genret.retrieval.linking.output.part_files import CANDIDATE, SCHEMA
from genret.retrieval.linking.shard_worker import part_metadata
from genret.service.main import cli
from tests.e2e.pages import ROOT, rows, section, text_of
from tests.linking_fakes import NIL_REASONS
from tests.sample_index import build_sample_index

PAGE = text_of("docs/linking.md")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.M | re.S)


def test_the_table_of_columns_is_the_schema() -> None:
    columns = rows(section("docs/linking.md", "Output"))
    assert [row[0].strip("`") for row in columns] == SCHEMA.names
    for (_, kind, _), field in zip(columns, SCHEMA, strict=True):
        assert kind == ("list" if pa.types.is_list(field.type) else str(field.type))
    (of_candidates,) = [text for name, _, text in columns if name == "`candidates`"]
    fields = re.findall(r"`(\w+)`", of_candidates.split("structs of")[1])
    assert fields == [CANDIDATE.field(place).name for place in range(CANDIDATE.num_fields)]


def test_the_reasons_for_nil_are_all_there_in_order() -> None:
    assert [row[0] for row in rows(section("docs/linking.md", "When a mention is NIL"))] == [
        f"`{name}`" for name in NIL_REASONS
    ]


def test_every_source_of_mentions_is_there() -> None:
    named = [
        re.findall(r"`(\w+)`", row[0])[0]
        for row in rows(section("docs/linking.md", "Where mentions come from"))
    ]
    assert named == list(MENTION_SOURCES)


def test_every_flag_of_the_page_is_one_of_the_command() -> None:
    flags = {name for option in link_command.params for name in (*option.opts, *option.secondary_opts)}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named
    assert named - flags == {"--help"}


def test_formats_units_and_defaults_are_those_of_the_code() -> None:
    text = section("docs/linking.md", "Input")
    for endings in ENDINGS.values():
        for ending in endings:
            assert f"`{ending}`" in text
    assert f"--input-format {INPUT_FORMATS[-1]}" in text
    for unit in SPAN_UNITS:
        assert f"`{unit}`" in text
    corpus = CorpusOptions(("documents.jsonl",))
    assert f"`--shard-documents` documents ({corpus.shard_documents:,})" in PAGE
    assert f"`--shard-chars` characters ({corpus.shard_chars:,})" in PAGE
    assert f"candidates kept, {LinkOptions().k}, and" in PAGE
    worker = WorkerOptions("sample.index")
    assert f"of them: {worker.cache_entries:,} with {LinkOptions().k} candidates" in PAGE
    assert f"`--batch-size` together: {worker.batch_size}, " in PAGE


def test_the_names_in_the_output_are_those_of_the_code() -> None:
    for name in re.findall(r"^links/([\w.-]+)(?:/[\w.-]+)?  +", PAGE, flags=re.M):
        assert is_ours(name)
    job = LinkJob(CorpusOptions(("documents.jsonl",)), LinkOptions(), WorkerOptions("sample.index"), "links")
    metadata = {f"genret.{name}" for name in part_metadata(job)}
    assert set(re.findall(r"`(genret\.\w+)`", PAGE)) == metadata


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader stands: the sample index, and the documents of the page."""
    folder = tmp_path_factory.mktemp("reader")
    build_sample_index(folder / "sample.index")
    (documents,) = [text for language, text in BLOCKS if language == "json"]
    (folder / "documents.jsonl").write_text(documents, encoding="utf-8", newline="")
    return folder


def told(command: str) -> str:
    """Return what a command says, without times, and without progress, which a terminal writes over."""
    result = CliRunner().invoke(cli, shlex.split(command)[1:], prog_name="genret")
    lines = [line for line in result.output.splitlines() if not re.match(r"[\d,]+/[\d,]+ documents", line)]
    return without_times("\n".join(lines))


def without_times(text: str) -> str:
    return re.sub(r"\d+\.\d s\b", "TIME", text)


def test_commands_and_python_print_what_the_page_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names: dict[str, object] = {}
    num_run = 0
    for place, (language, text) in enumerate(BLOCKS):
        if language == "console":
            for command, said in re.findall(r"^\$ (genret .*)\n((?:(?!\$ ).*\n)*)", text, flags=re.M):
                assert told(command) == without_times(said.rstrip("\n")), command
                num_run += 1
        if language == "python":
            if "import pandas" in text and importlib.util.find_spec("pandas") is None:
                continue
            capsys.readouterr()
            exec(compile(text, f"linking.md, block {place}", "exec"), names)
            assert capsys.readouterr().out == BLOCKS[place + 1][1]
            num_run += 1
    assert num_run >= 7


@pytest.mark.slow
def test_the_error_of_the_page_is_what_a_bad_line_gives(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "documents.jsonl"
    bad.write_text('{"text": "Paris"}\n{"text": 5}\n', encoding="utf-8")
    command = f"genret link {bad} --index {folder / 'sample.index'} --out {tmp_path / 'bad'} --workers 1"
    (expected,) = [text for language, text in BLOCKS if language == "" and text.startswith("Error")]
    assert told(command).replace(str(bad), bad.name) == expected.rstrip("\n")


@pytest.mark.slow
def test_the_example_of_the_readme_gives_the_rows_it_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^## Linking a corpus\n\n```\n(.*?)^```", readme, flags=re.M | re.S)
    (note,) = re.findall(r'^\$ echo "(.*)" > notes.txt$', shown, flags=re.M)
    ((command, said),) = re.findall(r"^\$ (genret .*)\n(\d.*)$", shown, flags=re.M)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "sample.index").symlink_to(folder / "sample.index")
    (tmp_path / "notes.txt").write_text(f"{note}\n", encoding="utf-8")
    assert told(command) == without_times(said)
    linked = [
        json.loads(line) for line in (tmp_path / "links.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    (filter_,) = re.findall(r"^\$ jq -c '\[(.*)\]' links.jsonl$", shown, flags=re.M)
    columns = [name.strip().removeprefix(".") for name in filter_.split(",")]
    assert [[row[name] for name in columns] for row in linked] == [
        json.loads(line) for line in re.findall(r"^\[.*\]$", shown, flags=re.M)
    ]
