from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from index_builder import command_line
from index_builder.cli import build_command
from retrieval.errors import ModelError
from retrieval.index.reader import Index
from retrieval.text import Rendering
from tests.index_fixtures import character_tokenizer, write_titles

TOKENIZER = character_tokenizer("abcdefgh <>")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    TOKENIZER._markup.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return folder


def run(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(build_command, [str(a) for a in arguments], input=stdin)


def test_the_file_alone_is_enough(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "default_model", lambda: checkpoint)
    titles = write_titles(tmp_path / "some_titles.tsv", ["abc", "b"])
    result = run(titles)
    assert result.exit_code == 0, result.output
    assert "2 entities, 2 rows of up to 4 tokens" in result.stdout
    assert "reading and tokenising" in result.stderr  # no terminal here: log lines
    with Index.open(tmp_path / "some_titles.index") as index:
        assert index.tokenizer_fingerprint == TOKENIZER.fingerprint
        assert index.rendering == Rendering()
    assert not (tmp_path / "some_titles.index.rejects.tsv").exists()


def test_the_checkpoint_says_how_titles_are_rendered(tmp_path: Path, checkpoint: Path) -> None:
    rendering = {"context": "", "prefix": "<", "suffix": ">", "end_token": None}
    (checkpoint / "genret.json").write_text(json.dumps({"format_version": 1, "rendering": rendering}))
    titles = write_titles(tmp_path / "t.txt", ["abc"])
    assert run(titles, "--tokenizer", checkpoint, "--quiet").exit_code == 0
    with Index.open(tmp_path / "t.index") as index:
        assert index.rendering == Rendering(prefix="<", suffix=">")
    options = ["--title-prefix", " ", "--title-context", "a", "--end-token", "<"]
    result = run(titles, "--tokenizer", checkpoint, *options)
    assert result.exit_code == 0, result.output
    with Index.open(tmp_path / "t.index") as index:
        assert index.rendering == Rendering(context="a", prefix=" ", suffix=">", end_token="<")
        assert TOKENIZER.decode(index.row_token_ids(0)) == " abc><"


def test_a_malformed_checkpoint_configuration_is_one_line(tmp_path: Path, checkpoint: Path) -> None:
    (checkpoint / "genret.json").write_text('{"format_version": 1, "rendering": {"prefix": 3}}')
    result = run(write_titles(tmp_path / "t.txt", ["abc"]), "--tokenizer", checkpoint)
    assert result.exit_code == 1
    assert "genret.json: malformed: rendering.prefix:" in result.stderr


def test_json_summary_is_all_of_standard_output(tmp_path: Path, checkpoint: Path) -> None:
    titles = write_titles(tmp_path / "t.tsv", ["title\tkind", "abc\tx", "", "b\ty"])
    result = run(titles, "--tokenizer", checkpoint, "--max-bad-rows", 1, "--json")
    summary = json.loads(result.stdout)
    assert summary["counts"]["entities"] == 2
    assert summary["rejected"] == {"no title": 1}
    assert Path(summary["rejects_file"]).read_text().splitlines()[1].startswith("3\tno title")
    assert "line 3: no title" in result.stderr
    assert summary["bytes"] == sum(summary["files"].values())


def test_quiet_says_nothing(tmp_path: Path, checkpoint: Path) -> None:
    result = run(write_titles(tmp_path / "t.txt", ["abc"]), "--tokenizer", checkpoint, "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_bad_rows_fail_and_say_how_to_allow_them(tmp_path: Path, checkpoint: Path) -> None:
    titles = write_titles(tmp_path / "t.txt", ["abc", "a\tb", *[""] * 6])
    result = run(titles, "--tokenizer", checkpoint, "--rejects", tmp_path / "bad.tsv")
    assert result.exit_code == 1
    assert "7 bad rows (allowed: 0): 6 × no title, 1 × too many tabs" in result.stderr
    assert "line 2: too many tabs" in result.stderr
    assert "and 2 more" in result.stderr
    assert "--max-bad-rows 7" in result.stderr
    assert len((tmp_path / "bad.tsv").read_text().splitlines()) == 8
    assert not (tmp_path / "t.index").exists()


def test_standard_input(tmp_path: Path, checkpoint: Path) -> None:
    result = run("-", "--tokenizer", checkpoint, "--out", tmp_path / "x.index", stdin="title\nabc\n")
    assert result.exit_code == 0, result.output
    with Index.open(tmp_path / "x.index") as index:
        assert index.surface(0) == "abc"
    result = run("-", "--tokenizer", checkpoint)
    assert result.exit_code == 2
    assert "--out INDEX" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["absent.tsv"], 1, "absent.tsv: no such file"),
        (["."], 1, "this is a directory"),
        (["empty.tsv"], 1, "empty.tsv: the file is empty"),
        (["header.tsv"], 1, "no title below it"),
        (["good.tsv", "--tokenizer", "absent/model"], 1, "'absent/model' is not an existing path"),
        (["good.tsv", "--tokenizer", "empty.tsv"], 1, "not a readable tokenizer.json"),
        (["good.tsv", "--tokenizer", "."], 1, "no tokenizer.json in this directory"),
        (["good.tsv", "--end-token", "<eot>"], 2, "'<eot>' is not in the vocabulary"),
        (["good.tsv", "--max-title-tokens", "1"], 2, "--max-title-tokens"),
        (["good.tsv", "--format", "csv"], 2, "--format"),
        (["good.tsv", "--out", "good.tsv"], 2, "is a file"),
        ([], 2, "TITLES"),
    ],
)
def test_mistakes_are_answered_without_a_traceback(
    tmp_path: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(command_line, "default_model", lambda: checkpoint)
    write_titles(tmp_path / "good.tsv", ["abc"])
    write_titles(tmp_path / "header.tsv", ["title"])
    (tmp_path / "empty.tsv").touch()
    result = run(*arguments)
    assert result.exit_code == status, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_no_default_model_is_said_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Path:
        raise ModelError("the shipped default model was not found; name one")

    monkeypatch.setattr(command_line, "default_model", absent)
    result = run(write_titles(tmp_path / "t.txt", ["abc"]))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the shipped default model was not found")


def test_options_come_from_the_environment(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENRET_BUILD_TOKENIZER", str(checkpoint))
    monkeypatch.setenv("GENRET_BUILD_OUT", str(tmp_path / "there"))
    assert run(write_titles(tmp_path / "t.txt", ["abc"])).exit_code == 0
    Index.open(tmp_path / "there").close()


def test_every_option_has_help_default_and_variable() -> None:
    for option in build_command.params[1:]:
        assert option.help  # type: ignore[attr-defined]
        assert option.envvar
    text = " ".join(run("--help").stdout.split())
    assert text.count("env var:") == len(build_command.params) - 1
