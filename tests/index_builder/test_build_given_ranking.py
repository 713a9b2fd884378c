"""Building with rankings that were fitted before."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from index_builder.cli import build_command
from retrieval.index.reader import Index
from retrieval.ranking.rankings import DEFAULT_RANKING, NO_MODEL, Rankings

TITLES = "".join(f"Title number {i}\n" for i in range(60))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "titles.txt").write_text(TITLES, encoding="utf-8")
    return tmp_path


def build(folder: Path, *options: str) -> tuple[int, str]:
    arguments = [str(folder / "titles.txt"), "--out", str(folder / "index"), "--quiet", *options]
    result = CliRunner().invoke(build_command, arguments)
    return result.exit_code, result.output


def test_an_index_takes_the_rankings_of_a_file(folder: Path) -> None:
    rankings = Rankings().with_one(NO_MODEL, DEFAULT_RANKING).with_one("some model", DEFAULT_RANKING)
    (folder / "ranking.json").write_bytes(rankings.to_bytes())
    assert build(folder, "--ranking", str(folder / "ranking.json")) == (0, "")
    with Index.open(folder / "index") as index:
        assert Rankings.read(index).to_bytes() == rankings.to_bytes()
        assert index.manifest.history[-1].options["evidence"]["ranking"] == str(folder / "ranking.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ("[]", "expected rankings of format version 1"),
        (json.dumps({"format_version": 1, "rankings": {"": {"weights": {"x": 1}}}}), "not a ranking"),
    ],
)
def test_a_file_without_rankings_is_refused_before_anything_is_made(
    folder: Path, content: str | None, message: str
) -> None:
    file = folder / "ranking.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    code, output = build(folder, "--ranking", str(file))
    assert code == 2
    assert f"ranking: {file}: " in output
    assert message in output
    assert not (folder / "index").exists()


def test_rankings_go_with_evidence(folder: Path) -> None:
    code, output = build(folder, "--evidence", "none", "--ranking", "ranking.json")
    assert code == 2
    assert "--ranking goes without --evidence none" in output
