"""Explanations as a tree with draws, and as JSON."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from retrieval.explanation import Explanation, ExplanationDraw, ExplanationNode
from retrieval.types import RetrievalResult
from service.client.reply import IndexRef, Reply
from service.commands.render import as_json, as_tree


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


def draw(number: int, sample: int = 0, **fields: float | bool) -> ExplanationDraw:
    told = {"valid_mass": 0.25, "acceptance_probability": 0.25, "accepted": False, "chosen": False, **fields}
    return ExplanationDraw(sample=sample, draw=number, node=3, **told)


def shown(explanation: Explanation, width: int = 100) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(as_tree(explanation))
    return [line.rstrip() for line in out.getvalue().splitlines()]


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
    index = IndexRef("sample", "v1", "d1")
    result = RetrievalResult("q", "beam", (), explanation=Explanation(NODES[:2], (draw(0),), True))
    document = json.loads(as_json("q", Reply(result, 0.5, 4.0, index)))
    assert document["explanation"] == {
        "nodes": [
            {
                "parent": None,
                "depth": 0,
                "token_id": 7,
                "text": "",
                "logprob": 0.0,
                "total_logprob": 0.0,
                "valid_mass": 0.75,
                "num_valid": 1234,
                "state": "expanded",
                "candidate_rank": None,
            },
            {
                "parent": 0,
                "depth": 1,
                "token_id": 7,
                "text": " Ham",
                "logprob": math.log(0.5),
                "total_logprob": math.log(0.5),
                "valid_mass": 0.125,
                "num_valid": None,
                "state": "expanded",
                "candidate_rank": None,
            },
        ],
        "draws": [
            {
                "sample": 0,
                "draw": 0,
                "node": 3,
                "valid_mass": 0.25,
                "acceptance_probability": 0.25,
                "accepted": False,
                "chosen": False,
            }
        ],
        "truncated": True,
    }
    plain = Reply(replace(result, explanation=None), 0.5, 4.0, index)
    assert "explanation" not in json.loads(as_json("q", plain))
