"""Answers and scores of titles as tables, lines and JSON."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from rich.console import Console

from genret.decoding.trace import TraceDraw
from genret.retrieval.explanation import Explanation, ExplanationNode
from genret.retrieval.score_types import ScoreResult, TitleScore
from genret.retrieval.types import Candidate, KvShare, RetrievalResult, Timings
from genret.service.client.reply import IndexRef, Reply, ScoreReply
from genret.service.commands import score as score_command
from genret.service.commands.query import AnswerPrinter, Question
from genret.service.commands.render import abstention, as_json, as_lines, as_table, as_tree, show
from genret.service.errors import CallError

CANDIDATES = (
    Candidate("Q1", "Hamlet [play]", "The Prince", -1.25, 0.75, {"kind": "work", "year": 1600}, 0.75),
    Candidate("Q2", "Tab\there\nline", "Tab\there\nline", -2.5, 0.25, {"kind": None}, 0.25),
)
INDEX = IndexRef("sample", "v1", "d1")


def reply(candidates: tuple[Candidate, ...] = CANDIDATES, method: str = "disc", **fields: Any) -> Reply:
    """A reply; that of `disc` has an estimate of the mass."""
    if method == "disc":
        estimate = {"mass": 0.5, "mass_stderr": 0.1, "num_draws": 64, "num_nodes": 21, "seed": 7}
        fields = {**estimate, "timings": Timings(1.0, 2.0, 3.0), **fields}
    return Reply(RetrievalResult("q", method, candidates, **fields), 0.5, 4.0, INDEX)


def cells(shown: Reply, first: int = 0) -> list[list[str]]:
    """The cells of the lines, from one column on."""
    return [line.split("\t")[first:] for line in as_lines("a\tb", shown)]


def printed(what: Any, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(what)
    return out.getvalue()


def table(shown: Reply, width: int = 120, min_mass: float | None = None) -> str:
    return printed(as_table("author of hamlet", shown, min_mass), width)


def test_lines_have_nine_cells_whatever_is_in_them() -> None:
    first, second = cells(reply())
    assert first == ["a b", "1", "Q1", "Hamlet [play]", "The Prince", "-1.250000", "0.750000", "0.750000", ""]
    assert second[3] == "Tab here line"


def test_json_holds_everything() -> None:
    document = json.loads(as_json("q", reply(mass_lower=0.25, mass_upper=0.75)))
    assert document["finish_reason"] == "OK"
    assert document["candidates"][0]["metadata"] == {"kind": "work", "year": 1600}
    assert document["candidates"][1]["title"] == "Tab\there\nline"
    assert document["index"] == {"name": "sample", "version": "v1", "digest": "d1"}
    timings = {"queue": 0.5, "prefill": 1.0, "decode": 2.0, "shortlist": 0.0, "score": 0.0, "total": 4.0}
    assert document["timings_ms"] == timings
    assert (document["certified"], document["mass"], document["seed"]) == (None, 0.5, 7)
    assert (document["mass_lower_bound"], document["mass_upper_bound"]) == (0.25, 0.75)
    assert (document["num_nodes"], document["abstained"]) == (21, False)
    assert [c["score"] for c in document["candidates"]] == [0.75, 0.25]


def test_json_of_a_failure_and_of_nothing() -> None:
    failed = json.loads(as_json("q", CallError("NOT_FOUND", "no index")))
    assert failed == {"query": "q", "error": {"code": "NOT_FOUND", "message": "no index"}}
    assert json.loads(as_json("q", reply(())))["finish_reason"] == "NO_MATCH"


def test_the_table_shows_titles_shares_metadata_and_the_models_word() -> None:
    shown = table(reply())
    for text in ("author of hamlet", "Hamlet [play]", "(The Prince)", "75%", "1600", "work"):
        assert text in shown
    assert "in the catalogue with probability 0.5 ± 0.1; seed 7; 4 ms" in shown
    assert "None" not in shown


def estimated(mass: float, stderr: float | None, num_draws: int = 128) -> Reply:
    return reply(mass=mass, mass_stderr=stderr, num_draws=num_draws)


def bounded(lower: float | None, upper: float | None, **fields: float) -> Reply:
    return reply(mass_lower=lower, mass_upper=upper, **fields)


# Of 64 draws none, or all, were accepted: the standard error is that of half a draw.
HALF_A_DRAW = ((0.5 / 65) * (1 - 0.5 / 65) / 64) ** 0.5


def test_the_table_says_when_nothing_matched_and_fits_narrow_terminals() -> None:
    assert "nothing in the catalogue matched" in table(reply(()))
    assert max(len(line) for line in table(reply(), width=50).splitlines()) <= 50
    told = {"about": "formerly", "kind": "a"}
    long = Candidate("city.pittsburgh", "Pittsburgh", "Pittsburgh", -1.0, 0.5, told, 0.5)
    for width, metadata in ((63, "formerly │ a "), (58, "formerly ")):
        shown = table(reply((long,)), width)
        assert f"│ Pittsburgh │ city.pittsburgh │   50% │ {metadata}" in shown
        assert ("no room for kind; --json has all" in shown) == (width < 63)


def test_in_a_file_nothing_is_cut_or_folded(capsys: pytest.CaptureFixture[str]) -> None:
    show(as_table("q", reply((replace(CANDIDATES[0], title="word " * 99),))))
    assert "word " * 99 in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mass", "min_mass", "said"),
    [
        (0.0312, 0.2, "0.031, below --min-mass 0.2"),
        (0.0, 0.2, "0, below --min-mass 0.2"),
        (0.1999, 0.2, "0.1999, below --min-mass 0.2"),
        (0.2 - 2**-55, 0.2, "0.19999999999999998, below --min-mass 0.2"),
        (0.9999, 1.0, "0.9999, below --min-mass 1"),
        (0.0312, None, "0.031, too little"),
    ],
)
def test_an_answer_that_was_withheld_says_why(mass: float, min_mass: float | None, said: str) -> None:
    said = f"in the catalogue with probability {said}"
    withheld = reply((), mass=mass, abstained=True)
    assert abstention(withheld, min_mass) == said
    shown = table(withheld, 160, min_mass)
    estimate = f"{mass:.3g} ± 0.1" if mass > 0 else "below 0.5"
    assert f"no match: {said}; estimated {estimate}; seed 7" in shown
    assert shown.count("in the catalogue with probability") == 1
    assert "nothing in the catalogue matched" not in table(withheld, 160, min_mass)
    document = json.loads(as_json("q", withheld))
    assert (document["finish_reason"], document["abstained"]) == ("NO_MATCH", True)
    assert abstention(reply(()), min_mass) == ""


def test_lines_go_with_a_remark_on_evidence_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    AnswerPrinter(Question(("q",), False, {"min_mass": None})).show("q", reply(missing_evidence=("texts",)))
    assert capsys.readouterr().err == "'q': without the index's texts, which cannot be used\n"


@pytest.mark.parametrize("known", [0.0, 0.26])
def test_a_probability_that_is_known_has_no_error(known: float) -> None:
    shown = table(bounded(known, known, mass=0.24, mass_stderr=0.02), width=160)
    assert f"in the catalogue with probability {known:g}; seed 7" in shown
    withheld = reply((), mass=0.24, mass_lower=known, mass_upper=known, abstained=True)
    said = f"no match: in the catalogue with probability {known:g}, below --min-mass 0.5; seed 7"
    assert said in table(withheld, 160, min_mass=0.5)


def listed(scores: tuple[float, float] = (-1.25, -2.5), **fields: Any) -> Reply:
    """An answer of beam search: candidates of logprob -1.25 and -2.5 with these scores."""
    candidates = (
        replace(one, probability=None, score=score) for one, score in zip(CANDIDATES, scores, strict=True)
    )
    return reply(tuple(candidates), "beam", **{"certified": True, "num_nodes": 80, **fields})


def test_scores_have_a_column_where_they_are_not_the_log_probabilities() -> None:
    assert "Score" not in table(listed())
    shown = table(listed((-0.25, -0.75)))
    for text in ("Score", "log P", "-0.25", "-0.75", "-1.25", "-2.50"):
        assert text in shown
    rows = [["-1.250000", "", "-0.250000", ""], ["-2.500000", "", "-0.750000", ""]]
    assert cells(listed((-0.25, -0.75)), 5) == rows


def scored() -> Reply:
    candidates = (
        Candidate("Q1", "Hamlet", "Hamlet", -1.25, 0.75, {}, -1.25, similarity=0.5),
        Candidate("Q2", "Macbeth", "Macbeth", -2.5, 0.215, {}, -2.5),
    )
    counts = {"mass_lower": 0.375, "num_scored": 1234, "shortlist_size": 1000}
    return reply(candidates, "auto", certified=False, timings=Timings(1.0, 2.0, 10.0, 3.0, 4.0), **counts)


def ranked(logprob: float = -1.25) -> Reply:
    shares = {"names": 8.0, "model": -0.25, "queries": 0.125, "texts": 0.01}
    candidates = (
        Candidate("Q1", "Hamlet", "Hamlet", logprob, 0.75, {}, 7.885, shares=shares),
        Candidate("Q2", "Macbeth", "Macbeth", logprob, 0.125, {}, 0.0),
    )
    missing = {"nothing_fits": 0.0625, "missing_evidence": ("ranking", "vectors")}
    return replace(reply(candidates, "auto", shortlist_size=24, **missing), queue_ms=3.0, total_ms=12.0)


def test_a_ranked_list_says_why_and_whether_anything_fits() -> None:
    shown = table(ranked(), width=160)
    weights = ("names +8.0", "model -0.2", "queries +0.1")
    for text in ("Probability", "75.0%", "12.5%", *weights, "log P", "-1.25"):
        assert text in shown
    for text in ("texts", "Score", "Among scored"):
        assert text not in shown
    assert "none of them is meant with probability 6.2%; without its ranking, vectors, which" in shown
    assert "12 ms, 3 of them waiting" in shown
    first, second = cells(ranked(), 5)
    shares = "names=8.000000 model=-0.250000 queries=0.125000 texts=0.010000"
    assert first == ["-1.250000", "0.750000", "7.885000", shares]
    assert second == ["-1.250000", "0.125000", "0.000000", ""]
    document = json.loads(as_json("q", ranked()))
    assert list(document["candidates"][0]["shares"]) == ["names", "model", "queries", "texts"]
    assert (document["nothing_fits"], document["missing_evidence"]) == (0.0625, ["ranking", "vectors"])


def test_a_list_without_a_model_has_no_log_probabilities() -> None:
    reply = ranked(math.nan)
    assert "log P" not in table(reply, width=160)
    assert [row[5] for row in cells(reply)] == ["", ""]
    assert [c["logprob"] for c in json.loads(as_json("q", reply))["candidates"]] == [None, None]


def test_a_scored_shortlist_shows_probabilities() -> None:
    shown = table(scored(), width=160)
    for text in ("log P", "Among scored", "75.0%", "21.5%"):
        assert text in shown
    assert "Score " not in shown
    assert "1,234 titles scored, of 1,000 entities proposed; 4 ms" in shown
    for text in ("Among scored", "Why", "scored"):
        assert text not in table(listed(), width=160)
    rows = [["-1.250000", "0.750000", "-1.250000", ""], ["-2.500000", "0.215000", "-2.500000", ""]]
    assert cells(scored(), 5) == rows
    document = json.loads(as_json("q", scored()))
    assert [c["similarity"] for c in document["candidates"]] == [0.5, None]
    assert (document["num_scored"], document["shortlist_size"]) == (1234, 1000)
    assert (document["timings_ms"]["shortlist"], document["timings_ms"]["score"]) == (3.0, 4.0)


KV = "MB of keys and values"
BOTH = KvShare(412_345, 5_123_456)


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        (estimated(0.0, HALF_A_DRAW), "probability below 0.05;"),  # 0.95 ** 64 is 4 %
        (estimated(1.0, HALF_A_DRAW), "probability above 0.95;"),
        (estimated(0.0, 0.0, 1000), "probability below 0.003;"),
        (estimated(0.0, 0.35, 2), "probability 0 ± 0.35;"),
        (estimated(0.0, None, 1), "probability 0;"),
        (estimated(0.011, 0.01), "probability 0.011 ± 0.01;"),
        (estimated(1e-6, 1e-6), "probability 1e-06 ± 1e-06;"),
        (estimated(0.9876, 0.0123), "probability 0.988 ± 0.012;"),
        # Bounds are rounded so that they stay true, and no estimate outside them is the probability.
        (bounded(None, None), "0.5 ± 0.1;"),
        (bounded(0.0, 1.0), "0.5 ± 0.1;"),
        (bounded(0.12345, 1.0), "0.5 ± 0.1, certainly at least 0.123;"),
        (bounded(0.12345, 0.98761), "0.5 ± 0.1, certainly between 0.123 and 0.988;"),
        (bounded(0.0, 0.98761), "0.5 ± 0.1, certainly between 0 and 0.988;"),
        (bounded(0.4999, 0.99999), "0.5 ± 0.1, certainly at least 0.499;"),
        (bounded(1.239e-7, 0.00012341, mass=1e-5), "certainly between 1.23e-07 and 0.000124;"),
        (
            bounded(0.000127, 0.000259, mass=0.000553, mass_stderr=0.00055),
            "probability 0.000259; estimated 0.000553 ± 0.00055, certainly between 0.000127 and 0.000259;",
        ),
        # Memory, and what it would have been with a cache for every beam or draw.
        (listed(kv=BOTH), f"index sample; 0.41 {KV} (5.1 MB with a cache per beam)"),
        (reply(kv=BOTH), f"index sample; 0.41 {KV} (5.1 MB with a cache per draw)"),
        (listed(kv=KvShare(9_940_000, 123_456_789)), f" 9.9 {KV} (123 MB with"),
        (listed(kv=KvShare(61_400_000, 2_023_000_000)), f" 61 {KV} (2,023 MB with"),
        (listed(kv=KvShare(812, 9_400)), f" 0.00081 {KV} (0.0094 MB with"),
        (
            listed(kv=replace(BOTH, shared_prefix_bytes=900_000)),
            f" 0.41 {KV} and 0.9 MB shared with other requests (5.1 MB with a cache per beam)",
        ),
        # What the proof took.
        (listed(num_exact_nodes=1234), "proven exact top-k after 1,234 more tokens; 4 ms"),
        (listed(num_exact_nodes=1234, certified=False), "not proven exact after 1,234 more tokens; 4 ms"),
    ],
)
def test_the_table_tells_probabilities_memory_and_the_proof(answered: Reply, said: str) -> None:
    assert said in table(answered, width=200)


def test_the_table_tells_neither_memory_nor_a_proof_that_there_was_not() -> None:
    shown = table(listed())
    for text in ("keys and values", "more tokens"):
        assert text not in shown


def test_json_tells_the_memory_and_what_the_proof_took() -> None:
    document = json.loads(as_json("q", listed(kv=KvShare(100, 80, 7, 3), num_exact_nodes=12)))
    branches = {"peak_bytes": 100, "per_branch_bytes": 80, "saved_bytes": -20}
    assert document["kv"] == {**branches, "shared_prefix_bytes": 7, "num_collections": 3}
    assert (document["num_nodes"], document["num_exact_nodes"]) == (80, 12)


def node(
    parent: int | None,
    text: str,
    probability: float,
    total: float,
    state: str = "expanded",
    valid: tuple[float, int | None] | None = None,
    rank: int | None = None,
) -> ExplanationNode:
    mass, count = valid or (None, None)
    depth = 0 if parent is None else 1
    logprobs = (math.log(probability), math.log(total))
    return ExplanationNode(parent, depth, 7, text, *logprobs, mass, count, state, rank)


NODES = (
    node(None, "", 1.0, 1.0, valid=(0.75, 1234)),
    node(0, " Ham", 0.5, 0.5, valid=(0.125, None)),
    node(0, " [b]Mac\x1b[2J", 0.25, 0.25, "pruned"),
    node(1, "</s>", 0.1, 0.05, "finished", rank=2),
    node(0, "\ufffd", 0.001, 0.001, "closed"),
    node(0, " O", 0.01, 0.01, "pruned"),
    node(0, " P", 0.002, 0.002, "pruned"),
    node(0, " Q", 0.00002, 0.00002, "pruned"),
    node(1, "burg", 0.05, 0.025, "finished"),
)


def draw(number: int, sample: int = 0, **fields: float | bool) -> TraceDraw:
    told = {"valid_mass": 0.25, "acceptance_probability": 0.25, "accepted": False, "chosen": False, **fields}
    return TraceDraw(sample=sample, draw=number, node=3, **told)


def shown(explanation: Explanation, width: int = 100) -> list[str]:
    return [line.rstrip() for line in printed(as_tree(explanation), width).splitlines()]


def test_the_tree_has_what_was_gone_on_from_first_and_the_likelier_first() -> None:
    assert shown(Explanation(NODES))[:8] == [
        "end of the prompt (1,234 valid: 75%, lost: 25%)",
        '├── " Ham" 50% (valid: 12.5%, lost: 87.5%)',
        '│   ├── "</s>" 10%  #2, finished, 5% in all',
        '│   └── "burg" 5%  finished, 2.5% in all',
        '├── " [b]Mac\\u001b[2J" 25%  pruned',
        '├── " O" 1%  pruned',
        '├── " P" 0.2%  pruned',
        "└── … 2 more that were left",
    ]


def test_a_chain_of_hundreds_of_tokens_is_shown() -> None:
    chain = (NODES[0], *(node(depth, "a", 0.9, 0.9 ** (depth + 1)) for depth in range(1500)))
    assert sum('"a" 90%' in line for line in shown(Explanation(chain), width=8000)) == 1500


def test_draws_are_a_table_that_says_what_became_of_them() -> None:
    draws = (
        draw(0),
        draw(1, accepted=True, chosen=True),
        draw(2, accepted=True),
        draw(3, acceptance_probability=0.0),
        draw(4, acceptance_probability=0.0, chosen=True),
        draw(0, sample=1, valid_mass=0.0, acceptance_probability=0.0),
        draw(0, sample=2, chosen=True),
    )
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in shown(Explanation(NODES, draws))
        if "Ham" in line and line.startswith("│ ") and line.endswith("│")
    ]
    assert rows == [
        ["0", "0", '" Ham"', "25%", "25%", "refused"],
        ["0", "1", '" Ham"', "25%", "25%", "accepted, the sample"],
        ["0", "2", '" Ham"', "25%", "25%", "accepted, not needed"],
        ["0", "3", '" Ham"', "25%", "", "not chosen"],
        ["0", "4", '" Ham"', "25%", "", "the sample, by weight"],
        ["1", "0", '" Ham"', "0%", "", "cannot go on"],
        ["2", "0", '" Ham"', "25%", "25%", "the sample, as the only one"],
    ]


def test_many_draws_are_counted() -> None:
    lines = shown(Explanation(NODES, tuple(draw(number) for number in range(1100))))
    assert sum("refused" in line for line in lines) == 64
    assert "… 1,036 more draws; --json has them all" in lines


@pytest.mark.parametrize(
    ("explanation", "line"),
    [
        (Explanation(), "the model was not asked: the filter allows no entity"),
        (Explanation(NODES, truncated=True), "not all of it: the least likely was left out"),
    ],
)
def test_what_is_not_there_is_said(explanation: Explanation, line: str) -> None:
    assert line in shown(explanation)


def test_json_has_every_field_where_it_was_asked_for() -> None:
    explanation = Explanation(NODES[:2], (draw(0),), True)
    told = json.loads(as_json("q", reply((), "beam", explanation=explanation)))["explanation"]
    assert told == json.loads(json.dumps(asdict(explanation)))
    assert told["nodes"][0]["valid_mass"] == 0.75
    assert "explanation" not in json.loads(as_json("q", reply((), "beam")))


SCORES = (
    TitleScore("Macbeth [play]", -2.5, 0.25, 4),
    TitleScore("Tab\there", None, 0.0, 999),
    TitleScore("Hamlet", -1.25, 0.75, 3, ("Q1", "Q2"), (0.625, 0.375)),
)
REPLY = ScoreReply(ScoreResult("q", SCORES, num_nodes=1234), 0.5, 4.0, INDEX)


def test_lines_have_six_cells_and_no_figures_for_what_is_too_long() -> None:
    assert [line.split("\t") for line in score_command.as_lines(REPLY)] == [
        ["Macbeth [play]", "-2.500000", "0.250000", "4", "", ""],
        ["Tab here", "", "", "999", "", ""],
        ["Hamlet", "-1.250000", "0.750000", "3", "Q1,Q2", "0.625000,0.375000"],
    ]


def test_json_has_a_line_for_every_title() -> None:
    first, long, last = (json.loads(line) for line in score_command.as_json(REPLY))
    assert (first["query"], first["title"], first["entity_ids"]) == ("q", "Macbeth [play]", [])
    assert (long["logprob"], long["probability"], long["num_tokens"]) == (None, None, 999)
    assert (last["logprob"], last["probability"], last["entity_ids"]) == (-1.25, 0.75, ["Q1", "Q2"])
    assert (first["entity_shares"], last["entity_shares"]) == ([], [0.625, 0.375])


def test_the_table_shows_titles_as_they_are_and_what_it_took() -> None:
    shown = printed(score_command.as_table(REPLY), 120)
    for text in ("Macbeth [play]", "-1.25", "75.0%", "too long", "Q1 (62%), Q2 (38%)", "none"):
        assert text in shown
    assert "1,234 tokens computed behind the prompt; 4 ms, 0 of them waiting; index sample" in shown


def test_the_best_stand_first_and_what_has_no_score_last() -> None:
    titles = [score.title for score in score_command.in_order(REPLY).result.scores]
    assert titles == ["Hamlet", "Macbeth [play]", "Tab\there"]
