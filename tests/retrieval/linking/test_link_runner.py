"""The linking loop over a fake retriever: order, ids, NIL, failures, bad rows, bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from decoding.errors import DecodingCancelledError
from retrieval.errors import InputError, ModelError, SourceError
from retrieval.linking.mentions import BadRow, MentionRow
from retrieval.linking.runner import LinkOptions, LinkSummary, link_mentions
from retrieval.types import Candidate, Mention, RetrievalResult, RetrieveRequest


class Echo:
    """Links "name:-3" to the entity "name" with logprob -3; "nothing" to none; "broken" fails."""

    def __init__(self) -> None:
        self.batches: list[list[RetrieveRequest]] = []

    def link_request(self, mention: Mention, k: int, method: str, **options: Any) -> RetrieveRequest:
        return RetrieveRequest(mention.mention, k, method, **options)

    def retrieve_batch(self, requests: Sequence[RetrieveRequest]) -> list[Any]:
        self.batches.append(list(requests))
        return [self._reply(request) for request in requests]

    def _reply(self, request: RetrieveRequest) -> object:
        if request.query == "broken":
            return ModelError("the model is broken")
        if request.query == "cancelled":
            return DecodingCancelledError("stopped")
        found = []
        mass = None
        if request.method == "disc":
            mass = 0.25 if request.query == "withheld" else 0.75
        if request.query not in ("nothing", "withheld"):
            name, _, score = request.query.partition(":")
            logprob = float(score or -1.0)
            found = [
                Candidate(
                    entity_id=f"E{n}-{name}",
                    title=f"title of {name}",
                    surface=name,
                    logprob=logprob - n,
                    probability=0.5 if n else None,
                    metadata={"x": 1},
                    score=(logprob - n) / 2,
                )
                for n in range(request.k)
            ]
        withheld = request.query == "withheld"
        certified = None
        if request.method == "beam":
            certified = request.exact and request.query != "vague"
        return RetrievalResult(
            request.query, request.method, tuple(found), certified=certified, mass=mass, abstained=withheld
        )


class Sheet:
    """A writer that keeps its rows and the size of every write."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.sizes: list[int] = []

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows += rows
        self.sizes.append(len(rows))


class Run:
    def __init__(self, rows: Iterable[str | BadRow | MentionRow], **options: Any) -> None:
        self.echo, self.sheet = Echo(), Sheet()
        self.complaints: list[str] = []
        self.reports: list[int] = []
        self.rows = iter(rows)
        self.options = LinkOptions(**options)

    def __call__(self) -> LinkSummary:
        return link_mentions(
            self.echo,  # type: ignore[arg-type]
            "in.jsonl",
            self._rows(),
            self.sheet,  # type: ignore[arg-type]
            self.options,
            lambda summary: self.reports.append(summary.num_mentions),
            self.complaints.append,
        )

    def _rows(self) -> Iterator[MentionRow | BadRow]:
        for line, row in enumerate(self.rows, 1):
            yield MentionRow(line, f"id{line}", Mention(row)) if isinstance(row, str) else row


def test_rows_come_in_input_order_whatever_their_length() -> None:
    mentions = ["m" * (1 + (n * 7) % 13) for n in range(100)]
    run = Run(mentions, batch_size=4, k=2)
    summary = run()
    assert [row["mention"] for row in run.sheet.rows] == mentions
    assert [row["id"] for row in run.sheet.rows] == [f"id{n}" for n in range(1, 101)]
    assert [row["surface"] for row in run.sheet.rows] == mentions
    assert summary == LinkSummary(num_mentions=100, num_linked=100)
    # Neighbours in length share a batch, within a window that bounds memory.
    assert max(len(batch) for batch in run.echo.batches) == 4
    assert run.sheet.sizes == [64, 36]
    first = [len(request.query) for batch in run.echo.batches[:16] for request in batch]
    assert first == sorted(first)
    assert run.reports[-1] == 100
    assert run.reports == sorted(run.reports)


def test_best_candidate_is_the_link_and_all_are_listed() -> None:
    run = Run(["a:-2"], k=2)
    run()
    assert run.sheet.rows == [
        {
            "id": "id1",
            "mention": "a:-2",
            "entity_id": "E0-a",
            "title": "title of a",
            "surface": "a",
            "logprob": -2.0,
            "probability": None,
            "candidates": [
                {"entity_id": "E0-a", "title": "title of a", "logprob": -2.0, "score": -1.0},
                {"entity_id": "E1-a", "title": "title of a", "logprob": -3.0, "score": -1.5},
            ],
            "error": None,
            "mass": None,
            "abstained": False,
            "score": -1.0,
            "certified": False,
        }
    ]


def test_a_withheld_answer_is_nil_with_its_mass() -> None:
    run = Run(["a", "withheld"], method="disc", min_mass=0.5, adaptive=True)
    assert run() == LinkSummary(num_mentions=2, num_linked=1, num_nil=1)
    linked, withheld = run.sheet.rows
    assert (linked["entity_id"], linked["mass"], linked["abstained"]) == ("E0-a", 0.75, False)
    assert (withheld["entity_id"], withheld["candidates"], withheld["error"]) == (None, [], None)
    assert (withheld["mass"], withheld["abstained"]) == (0.25, True)
    for request in run.echo.batches[0]:
        assert (request.min_mass, request.adaptive, request.seed) == (0.5, True, 0)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"min_mass": 0.5}, "min_mass"),
        ({"adaptive": True}, "adaptive"),
        ({"method": "disc", "min_mass": 1.5}, "min_mass"),
        ({"method": "disc", "beam_size": 65}, "beam_size"),
        ({"method": "disc", "beam_size": 2, "adaptive": True}, "adaptive"),
        ({"method": "disc", "exact": True}, "exact"),
        ({"exact_budget": 5}, "exact_budget"),
        ({"length_penalty": 5.0}, "length_penalty"),
        ({"length_penalty": 1.0, "aggregate": "sum"}, "aggregate"),
    ],
)
def test_options_of_a_method_are_checked_before_anything_is_linked(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as error:
        LinkOptions(**options)
    assert error.value.field == field


def test_scores_and_proofs_are_asked_for_and_written_down() -> None:
    run = Run(["a"], exact=True, exact_budget=7, length_penalty=0.5, aggregate="max")
    run()
    ((request,),) = run.echo.batches
    assert (request.exact, request.exact_budget) == (True, 7)
    assert (request.length_penalty, request.aggregate, request.seed) == (0.5, "max", None)
    assert run.sheet.rows[0]["certified"] is True


def test_lists_that_could_not_be_proven_are_counted_where_that_was_asked_for() -> None:
    asked = Run(["a", "vague", "nothing", "vague", "broken"], exact=True)
    counted = {"num_mentions": 5, "num_linked": 3, "num_nil": 1, "num_failed": 1}
    assert asked() == LinkSummary(**counted, num_unproven=2)
    assert Run(["a", "vague"])() == LinkSummary(num_mentions=2, num_linked=2)


def test_threshold_makes_nil_and_keeps_the_candidates() -> None:
    run = Run(["good:-2", "exact:-3", "poor:-3.01", "nothing"], min_logprob=-3.0, k=1)
    summary = run()
    assert [row["entity_id"] for row in run.sheet.rows] == ["E0-good", "E0-exact", None, None]
    assert run.sheet.rows[2]["logprob"] is None
    assert [c["entity_id"] for c in run.sheet.rows[2]["candidates"]] == ["E0-poor"]
    assert run.sheet.rows[3]["candidates"] == []
    assert all(row["error"] is None for row in run.sheet.rows)
    assert summary == LinkSummary(num_mentions=4, num_linked=2, num_nil=2)


def test_failed_mention_is_a_row_with_its_error() -> None:
    run = Run(["a", "broken", "cancelled", "b"])
    summary = run()
    assert [row["error"] for row in run.sheet.rows] == [None, "the model is broken", "stopped", None]
    assert run.sheet.rows[1]["entity_id"] is None
    assert summary == LinkSummary(num_mentions=4, num_linked=2, num_failed=2)
    assert sorted(run.complaints) == ["in.jsonl, line 2: the model is broken", "in.jsonl, line 3: stopped"]


def test_bad_rows_within_the_limit_are_left_out() -> None:
    run = Run(["a", BadRow(2, "no JSON"), "b", BadRow(4, "no mention")], max_bad_rows=2)
    summary = run()
    assert [row["mention"] for row in run.sheet.rows] == ["a", "b"]
    assert summary == LinkSummary(num_mentions=2, num_linked=2, num_bad_rows=2)
    assert run.complaints == ["in.jsonl, line 2: no JSON", "in.jsonl, line 4: no mention"]


@pytest.mark.parametrize(("allowed", "line", "number"), [(0, 2, 1), (1, 4, 2)])
def test_one_bad_row_too_many_ends_the_run(allowed: int, line: int, number: int) -> None:
    run = Run(["a", BadRow(2, "no JSON"), "b", BadRow(4, "no JSON"), "c"], max_bad_rows=allowed)
    with pytest.raises(SourceError) as error:
        run()
    assert str(error.value) == (
        f"in.jsonl, line {line}: no JSON (bad row {number}, {allowed} allowed; "
        "allow more with --max-bad-rows)"
    )


def test_nothing_to_link() -> None:
    run = Run([])
    assert run() == LinkSummary()
    assert run.sheet.rows == []


def test_every_mention_has_the_filter() -> None:
    run = Run(["a", "b"], k=3, filter="kind = 'x'")
    run()
    assert [request.filter for batch in run.echo.batches for request in batch] == ["kind = 'x'"] * 2


def test_seed_is_for_disc_only() -> None:
    for method, seed in (("beam", None), ("disc", 5)):
        run = Run(["a"], method=method, seed=5, k=3)
        run()
        assert run.echo.batches == [[RetrieveRequest("a", k=3, method=method, seed=seed)]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, r"k: must be in \[1, 1000\], got 0"),
        ({"method": "x"}, "method: must be one of beam, disc; got 'x'"),
        ({"beam_size": 0}, "beam_size: must be in"),
        ({"filter": "a b"}, "filter: at character 3: expected a comparison"),
        ({"seed": 2**64}, "seed: must be in"),
        ({"batch_size": 0}, "batch_size: must be at least 1, got 0"),
        ({"max_bad_rows": -1}, "max_bad_rows: must be at least 0, got -1"),
        ({"min_logprob": math.nan}, "min_logprob: must be a number, got nan"),
    ],
)
def test_options_are_checked_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LinkOptions(**options)
