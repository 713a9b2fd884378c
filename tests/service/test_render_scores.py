"""Scores of titles as a table, lines and JSON."""

from __future__ import annotations

import io
import json

from rich.console import Console

from genret.retrieval.score_types import ScoreResult, TitleScore
from genret.service.client.reply import IndexRef, ScoreReply
from genret.service.commands.render_scores import as_json, as_lines, as_table, best_first

SCORES = (
    TitleScore("Macbeth [play]", -2.5, 0.25, 4),
    TitleScore("Tab\there", None, 0.0, 999),
    TitleScore("Hamlet", -1.25, 0.75, 3, ("Q1", "Q2"), (0.625, 0.375)),
)
REPLY = ScoreReply(ScoreResult("q", SCORES, num_nodes=1234), 0.5, 4.0, IndexRef("sample", "v1", "d1"))


def test_lines_have_six_cells_and_no_figures_for_what_is_too_long() -> None:
    assert [line.split("\t") for line in as_lines(REPLY)] == [
        ["Macbeth [play]", "-2.500000", "0.250000", "4", "", ""],
        ["Tab here", "", "", "999", "", ""],
        ["Hamlet", "-1.250000", "0.750000", "3", "Q1,Q2", "0.625000,0.375000"],
    ]


def test_json_has_a_line_for_every_title() -> None:
    first, long, last = (json.loads(line) for line in as_json(REPLY))
    assert (first["query"], first["title"], first["entity_ids"]) == ("q", "Macbeth [play]", [])
    assert (long["logprob"], long["probability"], long["num_tokens"]) == (None, None, 999)
    assert (last["logprob"], last["probability"], last["entity_ids"]) == (-1.25, 0.75, ["Q1", "Q2"])
    assert (first["entity_shares"], last["entity_shares"]) == ([], [0.625, 0.375])


def test_the_table_shows_titles_as_they_are_and_what_it_took() -> None:
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(as_table(REPLY))
    for text in ("Macbeth [play]", "-1.25", "75.0%", "too long", "Q1 (62%), Q2 (38%)", "none"):
        assert text in out.getvalue()
    assert "1,234 tokens computed behind the prompt; 4 ms, 0 of them waiting; index sample" in out.getvalue()


def test_the_best_stand_first_and_what_has_no_score_last() -> None:
    assert [score.title for score in best_first(REPLY).result.scores] == [
        "Hamlet",
        "Macbeth [play]",
        "Tab\there",
    ]
