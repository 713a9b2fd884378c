"""A checkpoint's fingerprint changes with what it is made of, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.checkpoints import folder_fingerprint, model_fingerprint
from retrieval.errors import ModelError


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


def test_the_same_files_elsewhere_have_the_same_fingerprint(tmp_path: Path) -> None:
    one = write(tmp_path / "one", config_json="{}", model_safetensors="weights")
    two = write(tmp_path / "two", config_json="{}", model_safetensors="weights", README_md="text")
    (one / "checkpoints").mkdir()
    assert model_fingerprint(str(one)) == model_fingerprint(str(two)) == folder_fingerprint(one)


@pytest.mark.parametrize("name", ["config_json", "model_safetensors", "genret_json"])
def test_any_file_of_the_model_changes_it(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "model", config_json="{}", model_safetensors="weights", genret_json="{}")
    before = folder_fingerprint(folder)
    write(folder, **{name: "other"})
    assert folder_fingerprint(folder) != before


def test_of_the_hub_the_commit_counts(tmp_path: Path) -> None:
    folder = write(tmp_path / "models--some--model" / "snapshots" / "abc123", config_json="{}")
    assert folder_fingerprint(folder) == "some/model@abc123"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "model", config_json="{}")

    def refuse(file: Path) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("retrieval.checkpoints.digest_file", refuse)
    with pytest.raises(ModelError, match="the checkpoint cannot be read: Permission denied"):
        folder_fingerprint(folder)
