"""The whole chain: a tiny model, taught for a minute to write links, links texts that it has not seen."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from genret import Retriever
from genret.index_builder.cli import build_command
from genret.retrieval.linking.generating.generator import MentionGenerator
from genret.retrieval.training.train_command import train_command

# Surface form and title: some names have to be told apart from others that begin alike.
NAMES = {
    "Nile": "Nile",
    "Everest": "Mount Everest",
    "K2": "K2",
    "Paris": "Paris",
    "Hamlet": "Hamlet (play)",
    "Mercury": "Mercury (planet)",
    "Marie Curie": "Marie Curie",
    "Berlin": "Berlin",
}
SENTENCES = (
    "We saw {} and {} in spring.",
    "Nobody had told them about {} before.",
    "A book on {} lies on the table.",
    "Between {} and {} there is little.",
    "They talk of {} all day long.",
    "The story of {} is old, that of {} is not.",
    "First came {}, then came the rain.",
    "{} is what she likes best.",
)


def sentence(random: Random) -> tuple[str, list[tuple[int, int, str]]]:
    """A sentence with its links."""
    pieces = random.choice(SENTENCES).split("{}")
    names = random.sample(sorted(NAMES), len(pieces) - 1)
    text, links = pieces[0], []
    for name, piece in zip(names, pieces[1:], strict=True):
        links.append((len(text), len(text) + len(name), NAMES[name]))
        text += name + piece
    return text, links


def write_files(folder: Path) -> None:
    titles = "".join(f"{number}\t{title}\n" for number, title in enumerate(NAMES.values()))
    (folder / "catalogue.tsv").write_text("entity_id\ttitle\n" + titles, encoding="utf-8")
    random = Random(1)
    lines = []
    for _ in range(400):
        text, links = sentence(random)
        for start, end, title in links:
            mention = {"left": text[:start], "mention": text[start:end], "right": text[end:], "title": title}
            lines.append(json.dumps(mention) + "\n")
    (folder / "mentions.jsonl").write_text("".join(lines), encoding="utf-8")


@pytest.mark.slow
def test_a_model_that_was_taught_to_write_links_finds_and_links_most_mentions(tmp_path: Path) -> None:
    write_files(tmp_path)
    trained = CliRunner().invoke(
        train_command,
        [
            *("--catalogue", str(tmp_path / "catalogue.tsv"), "--mentions", str(tmp_path / "mentions.jsonl")),
            *("--preset", "tiny", "--vocab-size", "400", "--annotations", "0.9", "--max-steps", "700"),
            *("--batch-size", "16", "--cpu", "--out", str(tmp_path / "model")),
        ],
    )
    assert trained.exit_code == 0, trained.output
    built = CliRunner().invoke(
        build_command,
        [
            *(str(tmp_path / "catalogue.tsv"), "--out", str(tmp_path / "index")),
            *("--tokenizer", str(tmp_path / "model")),
        ],
    )
    assert built.exit_code == 0, built.output
    random = Random(2)
    texts = [sentence(random) for _ in range(60)]
    with Retriever.open(tmp_path / "index", tmp_path / "model", device="cpu") as retriever:
        generated = MentionGenerator(retriever).annotate([text for text, _ in texts])
    found = {(i, m.start, m.end, m.title) for i, mentions in enumerate(generated) for m in mentions}
    right = {(i, *link) for i, (_, links) in enumerate(texts) for link in links}
    assert len(found & right) >= 0.8 * len(right)
    assert len(found & right) >= 0.8 * len(found)
