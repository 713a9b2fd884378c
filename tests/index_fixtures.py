"""Small tokenizers and indexes for the tests of the builder and of the reader."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from genret.index_builder import faults
from genret.index_builder.build import BuildSummary, build_index
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.evidence.field import QUERIES, open_field
from genret.retrieval.index.layout import QUERIES_FILE
from genret.retrieval.index.reader import Index
from genret.retrieval.index.versions import version_dir
from genret.retrieval.progress import StepProgress
from genret.retrieval.text import TextTokenizer

END = "</s>"


def character_tokenizer(alphabet: Iterable[str], first_id: int = 0, lower: bool = False) -> TextTokenizer:
    """One token per character, numbered from `first_id`; the end token is 0 or above all characters.

    A `first_id` leaves a hole below, which makes large ids without a large vocabulary.
    """
    vocabulary = {character: first_id + i for i, character in enumerate(dict.fromkeys(alphabet))}
    end = max(vocabulary.values()) + 1
    tokenizer = Tokenizer(models.WordLevel({**vocabulary, END: end, "<unk>": end + 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens([END])
    return TextTokenizer(tokenizer, END, "characters")


def write_titles(file: Path, lines: Sequence[str]) -> Path:
    file.write_bytes(("\n".join(lines) + "\n").encode())
    return file


def build(
    folder: Path, lines: Sequence[str], tokenizer: TextTokenizer, name: str = "it.index", **options: object
) -> BuildSummary:
    source = write_titles(folder / "titles.tsv", lines)
    return build_index(source, tokenizer, BuildOptions(out=folder / name, **options))  # type: ignore[arg-type]


def version_files(summary: BuildSummary) -> dict[str, bytes]:
    """Content of every file of the version a build published."""
    return files_of(summary.index / "versions" / summary.version)


def files_of(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def data_files(index: Path, version: str) -> dict[str, bytes]:
    """Content of the files of a version but the manifest."""
    files = files_of(index / "versions" / version)
    del files["manifest.json"]
    return files


def live_content(index: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Data files of the live version, and its manifest without the history."""
    files = files_of(version_dir(index))
    manifest = json.loads(files.pop("manifest.json"))
    del manifest["history"]
    return files, manifest


def save_tokenizer(tokenizer: TextTokenizer, folder: Path) -> Path:
    """Save a tokenizer as a checkpoint without a model."""
    folder.mkdir()
    tokenizer._markup.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return folder


def past_queries_of(index: Path) -> dict[str, list[tuple[str, int]]]:
    """Return the past queries of an index, by entity id."""
    with Index.open(index) as opened:
        if opened.manifest.file(QUERIES_FILE) is None:
            return {}
        field = open_field(opened, QUERIES)
        return {opened.entity(number).entity_id: mine for number, mine in field.all_queries()}


class Notes(StepProgress):
    """Progress that remembers what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.advances: list[str] = []

    def advance(self, done: int, note: str, *, tells_left: bool = False) -> None:
        self.advances.append(note)

    def note(self, text: str) -> None:
        self.notes.append(text)


@contextmanager
def fault(setting: str) -> Iterator[None]:
    """Let a fault point do in the block what the setting says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faults.ENVIRONMENT_VARIABLE, setting)
        patch.setattr(faults, "_passages", {})
        yield


def flip(file: Path, at: int | None = None) -> None:
    """Flip a bit of a file, by default in its middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    file.write_bytes(data)
