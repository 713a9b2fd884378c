"""The options about sources: from the command line to what is read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from index_builder import build as build_module
from index_builder.cli import build_command
from index_builder.memory_budget import MIB
from index_builder.source_flags import SourceFlags, byte_size, source_flags, typed_column
from retrieval.index.reader import Index
from retrieval.sources import ColumnMapping, ColumnType
from tests.index_fixtures import character_tokenizer, write_titles

TOKENIZER = character_tokenizer("abcdefgh &;mp")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    TOKENIZER._markup.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return folder


def run(checkpoint: Path, *arguments: object) -> Result:
    return CliRunner().invoke(build_command, [*map(str, arguments), "--tokenizer", str(checkpoint)])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("512MiB", 512 * MIB),
        ("2GiB", 2 << 30),
        ("2G", 2 << 30),
        ("1.5 gb", 3 << 29),
        ("700m", 700 * MIB),
        ("1048576K", 1 << 30),
        ("1073741824", 1 << 30),
        ("1073741824B", 1 << 30),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert byte_size(text) == number


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1 X", "1e9", "2 GiB more"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected bytes such as 512MiB"):
        byte_size(text)


def test_types_of_columns() -> None:
    assert typed_column("year=int") == ("year", ColumnType.INT)
    assert typed_column("a=b=string") == ("a=b", ColumnType.STRING)
    for text in ("year", "year=", "=int", "year=integer"):
        with pytest.raises(click.BadParameter, match="expected COLUMN=TYPE with a type of string, int"):
            typed_column(text)


def test_the_defaults_and_variables_of_another_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    @click.command()
    @source_flags("GENRET_UPDATE_")
    @click.option("--more", default=3)
    def command(flags: SourceFlags, more: int) -> None:
        found.append((flags, more))

    assert CliRunner().invoke(command, []).exit_code == 0
    assert found.pop() == (SourceFlags("auto", ColumnMapping(), None, False, 2 << 30), 3)
    monkeypatch.setenv("GENRET_UPDATE_METADATA", "year kind")
    monkeypatch.setenv("GENRET_UPDATE_TYPE", "year=int")
    monkeypatch.setenv("GENRET_UPDATE_MEMORY_LIMIT", "1G")
    monkeypatch.setenv("GENRET_UPDATE_UNESCAPE_HTML", "1")
    assert CliRunner().invoke(command, ["--more", "4", "--title-column", "name"]).exit_code == 0
    mapping = ColumnMapping(title="name", metadata=("year", "kind"), types={"year": ColumnType.INT})
    assert found.pop() == (SourceFlags("auto", mapping, None, True, 1 << 30), 4)


def test_columns_formats_and_several_files(tmp_path: Path, checkpoint: Path) -> None:
    one = write_titles(tmp_path / "one.tsv", ["qid\tname\talso\tyear\tnote", "q1\ta\tb;c\t1990\tx"])
    two = tmp_path / "two.jsonl.gz"
    rows = [{"qid": "q2", "name": "d", "also": ["e"], "year": 2.5}, {"qid": "q3", "name": "f"}]
    two.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    options = ["--title-column", "name", "--id-column", "qid", "--aliases-column", "also"]
    options += ["--alias-separator", ";", "--metadata", "year", "--type", "year=float", "--json", "--quiet"]
    result = run(checkpoint, one, two, *options)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["metadata"] == {"year": "float"}
    assert summary["records"] == 3
    with Index.open(tmp_path / "one.index") as index:
        found = {e.entity_id: e for e in map(index.entity, range(3))}
        assert (found["q1"].title, found["q1"].aliases) == ("a", ("b", "c"))
        assert found["q1"].metadata == {"year": 1990.0}
        assert (found["q2"].aliases, found["q2"].metadata) == (("e",), {"year": 2.5})
        assert found["q3"].metadata == {"year": None}
        names = [file.name for file in index.manifest.history[-1].sources]
        assert names == ["one.tsv", "two.jsonl.gz"]


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_second_file_of_aliases_may_name_entities_by_title(
    tmp_path: Path, checkpoint: Path, with_ids: bool
) -> None:
    lines = ["entity_id\ttitle", "q1\ta", "q2\tb"] if with_ids else ["title", "a", "b"]
    titles = write_titles(tmp_path / "t.tsv", lines)
    aliases = write_titles(tmp_path / "aliases.tsv", ["title\talias", "a\tc", "d\te"])
    result = run(checkpoint, titles, "--aliases", aliases)
    assert result.exit_code == 1
    assert "aliases.tsv, line 3: alias of an unknown entity" in result.stderr
    result = run(checkpoint, titles, "--aliases", aliases, "--max-bad-rows", 1, "--json")
    assert json.loads(result.stdout)["rejected"] == {"alias of an unknown entity": 1}
    with Index.open(tmp_path / "t.index") as index:
        assert index.entity(0).aliases == ("c",)


def test_html_entities_stay_unless_asked(tmp_path: Path, checkpoint: Path) -> None:
    titles = write_titles(tmp_path / "t.txt", ["a &amp; b"])
    result = run(checkpoint, titles)
    assert "titles: 1 with HTML entities kept" in result.stdout
    result = run(checkpoint, titles, "--unescape-html", "--json")
    assert json.loads(result.stdout)["normalization"]["unescaped"] == 1
    with Index.open(tmp_path / "t.index") as index:
        assert index.entity(0).title == "a & b"


def test_what_an_interrupted_command_says_and_the_next_one_takes_up(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = write_titles(tmp_path / "t.txt", ["a", "b"])
    with monkeypatch.context() as patch:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(build_module, "write_version", interrupted)
        result = run(checkpoint, titles)
    assert result.exit_code == 130
    assert "nothing was built at" in result.stderr
    assert "2 records are tokenised already: the same command goes on from there" in result.stderr
    result = run(checkpoint, titles)
    assert "build-index: resuming: 2 records in 1 shard are already tokenised" in result.stderr
    assert "2 records were taken over from an earlier run" in result.stdout
    result = run(checkpoint, titles, "--json")
    summary = json.loads(result.stdout)
    assert summary["resumed"] == {"shards": 0, "records": 0}
    assert summary["seconds"].keys() >= {"reading and tokenising", "resolving entities", "publishing"}
    assert summary["peak_rss_bytes"] > 10 * MIB


def test_no_resume(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles = write_titles(tmp_path / "t.txt", ["a", "b"])
    monkeypatch.setenv("GENRET_FAULT", "merge-started:interrupt")
    monkeypatch.setattr("index_builder.faults._passages", {})
    assert run(checkpoint, titles).exit_code == 130
    result = run(checkpoint, titles, "--no-resume", "--json")
    assert "resuming" not in result.stderr
    assert json.loads(result.stdout)["resumed"]["shards"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory-limit", "lots"], "expected bytes such as 512MiB"),
        (["--memory-limit", "100MiB"], "must be at least 512 MiB"),
        (["--type", "kind"], "expected COLUMN=TYPE"),
        (["--type", "kind=int", "--type", "kind=bool"], "column 'kind' is given more than one type"),
        (["--metadata", "kind", "--metadata", "kind"], "'kind' is named more than once"),
        (["--title-column", ""], "must not be empty"),
        (["--title-column", "a", "--id-column", "a"], "must be three columns"),
        (["--metadata", "kind", "--type", "year=int"], "'year' is not among the metadata columns"),
    ],
)
def test_contradictions_are_usage_errors(
    tmp_path: Path, checkpoint: Path, options: list[str], message: str
) -> None:
    titles = write_titles(tmp_path / "t.tsv", ["title\tkind", "a\t1"])
    result = run(checkpoint, titles, *options)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_metadata_can_be_left_out_altogether(checkpoint: Path, tmp_path: Path) -> None:
    titles = tmp_path / "c.jsonl"
    titles.write_text('{"title": "a", "kind": [1]}\n')
    result = run(checkpoint, titles, "--no-metadata", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["metadata"] == {}
    refused = run(checkpoint, titles, "--no-metadata", "--metadata", "kind")
    assert refused.exit_code == 2
    assert "--no-metadata goes without --metadata and --type" in refused.output
