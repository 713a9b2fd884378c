"""Comparisons of methods, and their report as Markdown and as HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.evaluation.intervals import Interval, bootstrap, holm, paired_bootstrap
from genret.retrieval.evaluation.labelled_sets import LabelledSet, MethodRun
from genret.retrieval.evaluation.metrics import MetricValues, measure
from genret.retrieval.evaluation.reporting.comparison import Settings, compare, make_overview, pool
from genret.retrieval.evaluation.reporting.evaluation_report import Facts, make_document, to_json
from genret.retrieval.evaluation.reporting.quality_plots import Point, draw
from genret.retrieval.evaluation.reporting.report_pages import (
    Cell,
    Code,
    Drawing,
    Heading,
    Paragraph,
    Table,
    TermList,
    to_html,
    to_markdown,
)
from genret.retrieval.evaluation.reporting.wording import describe_methods, describe_metric
from tests.evaluation_sets import mention_set, query_set, run_of

SETTINGS = Settings("trie", num_resamples=300)


def make_run(
    labelled: LabelledSet, method: str, answers: Sequence[str], seed: int | None = None, seconds: float = 0.01
) -> MethodRun:
    """One answer per query; "" is none."""
    return run_of(labelled, [[answer] if answer else [] for answer in answers], method, seed, seconds)


ASKED = query_set()
RIGHT = ["Q1", "Q2", "Q6", "Q7", "Q5", "Q10"]
RUNS = [
    make_run(ASKED, "trie", ["Q1", "Q3", "Q3", "Q3", "Q3", "Q3"], seed=0),
    make_run(ASKED, "unconstrained", ["Q1", "invalid:x", "", "invalid:y", "", "Q3"], seed=0),
    make_run(ASKED, "disc:2", RIGHT, seed=0),
    make_run(ASKED, "beam", ["Q1", "Q2", "Q6", "Q3", "Q3", "Q3"]),
]


def test_figures_rates_and_times() -> None:
    (comparison,) = compare([ASKED], RUNS, SETTINGS)
    by_method = {m.method: m for m in comparison.methods}
    assert list(by_method) == ["trie", "unconstrained", "disc:2", "beam"]
    assert comparison.primary == "nDCG@10"
    assert by_method["disc:2"].figures["Success@1"].interval.value == 1.0
    assert by_method["beam"].figures["Success@1"].interval.value == 0.5
    assert by_method["unconstrained"].rates["invalid"] == pytest.approx(2 / 6)
    assert by_method["unconstrained"].rates["NO_MATCH"] == pytest.approx(2 / 6)
    assert by_method["trie"].rates["invalid"] == 0.0
    times = by_method["beam"].times
    assert times.p50_ms == pytest.approx(35.0)
    assert times.mean_ms == pytest.approx(35.0)
    assert times.p99_ms == pytest.approx(np.percentile([10, 20, 30, 40, 50, 60], 99))
    assert (times.total_s, times.queries_per_s) == (2.0, 3.0)


def test_intervals_and_p_values_are_those_of_the_bootstrap() -> None:
    (comparison,) = compare([ASKED], RUNS, SETTINGS)
    measured = {run.method: {m.name: m for m in measure(ASKED, run)} for run in RUNS}
    p_values = []
    for method in comparison.methods:
        mine = measured[method.method]["nDCG@10"]
        assert method.figures["nDCG@10"].interval == bootstrap(mine, None, 300)
        if method.method == "trie":
            assert (method.difference, method.adjusted_p) == (None, None)
        else:
            assert method.difference == paired_bootstrap(mine, measured["trie"]["nDCG@10"], None, 300)
            p_values.append(method.difference.p_value)
    assert [m.adjusted_p for m in comparison.methods[1:]] == holm(p_values)


def test_seeds_are_averaged_per_query_and_their_spread_is_told() -> None:
    first = make_run(ASKED, "disc:1", RIGHT, seed=0)
    second = make_run(ASKED, "disc:1", ["Q1", "Q2", "Q6", "Q3", "Q3", "Q3"], seed=1)
    (comparison,) = compare([ASKED], [first, second], Settings("disc:1", num_resamples=300))
    (method,) = comparison.methods
    figure = method.figures["Success@1"]
    assert method.seeds == (0, 1)
    assert figure.interval.value == pytest.approx(0.75)
    assert figure.spread == pytest.approx(np.std([1.0, 0.5], ddof=1))
    assert comparison.methods[0].difference is None


def test_counts_of_several_seeds_are_taken_together() -> None:
    marked = mention_set()
    runs = [
        make_run(marked, "disc:1", ["Q4", "Q5", "", ""], seed=0),
        make_run(marked, "disc:1", ["Q4", "Q4", "Q9", "Q9"], seed=1),
    ]
    values = [measure(marked, run, ["F1(InKB)"])[0] for run in runs]
    pooled = pool(values)
    assert pooled.value == pytest.approx(2 * 4 / (6 + 8))  # 4 right of 6 answers to twice 4 mentions
    assert pool(values[:1]) is values[0]


def test_methods_of_one_and_of_several_seeds_differ_where_their_answers_do() -> None:
    marked = mention_set()
    answers = ["Q4", "Q5", "", "Q12"]
    runs = [
        make_run(marked, "trie", answers, seed=0),
        make_run(marked, "trie", answers, seed=1),
        make_run(marked, "beam", answers),
    ]
    (comparison,) = compare([marked], runs, SETTINGS)
    first, second = (method.figures["F1(InKB)"].interval for method in comparison.methods)
    assert first == second
    difference = comparison.methods[1].difference
    assert (difference.value, difference.low, difference.high, difference.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_mentions_are_resampled_by_document() -> None:
    marked = mention_set()
    run = make_run(marked, "trie", ["Q4", "Q5", "Q8", "Q12"])
    asked, comparison = compare([ASKED, marked], [RUNS[0], run], SETTINGS)
    assert [(c.num_resampled, c.by_document) for c in (asked, comparison)] == [(6, False), (3, True)]
    (f1,) = measure(marked, run, ["F1(InKB)"])
    grouped = bootstrap(f1, ["a", "a", "b", "c"], 300)
    assert comparison.methods[0].figures["F1(InKB)"].interval == grouped
    assert grouped != bootstrap(f1, None, 300)


def test_means_over_sets_are_resampled_within_each_set() -> None:
    """Against two sets resampled by hand, each with draws of its own."""
    other = query_set("other")
    runs = [*RUNS, *(replace(run, set_name="other", seconds=4.0) for run in RUNS)]
    comparisons = compare([ASKED, other], runs, SETTINGS)
    overview = make_overview(comparisons, "trie")
    rows = {row.method: row for row in overview.rows}
    assert overview.set_names == ("asked", "other")
    assert rows["disc:2"].mean == pytest.approx(1.0)
    assert rows["disc:2"].gain == pytest.approx(1.0 / rows["trie"].mean - 1)
    assert rows["trie"].gain is None
    assert rows["beam"].seconds == 6.0
    assert rows["unconstrained"].invalid == pytest.approx(1 / 3)
    drawn = [np.random.default_rng((0, number)).integers(6, size=(300, 6)) for number in (0, 1)]
    values = {run.method: measure(ASKED, run, ["nDCG@10"])[0].per_query for run in RUNS}
    means = {name: np.mean([v[d].mean(axis=1) for d in drawn], axis=0) for name, v in values.items()}
    for name, row in rows.items():
        assert (row.mean_low, row.mean_high) == pytest.approx(tuple(np.quantile(means[name], [0.025, 0.975])))
    assert rows["beam"].mean_low < rows["beam"].mean < rows["beam"].mean_high
    # Some resamples leave the baseline with nothing: then no ratio has an interval.
    assert (means["trie"] == 0).any()
    assert (rows["beam"].gain_low, rows["beam"].gain_high) == (None, None)
    against = {row.method: row for row in make_overview(comparisons, "disc:2").rows}
    assert (against["beam"].gain_low, against["beam"].gain_high) == pytest.approx(
        tuple(np.quantile(means["beam"] / means["disc:2"] - 1, [0.025, 0.975]))
    )
    assert (against["disc:2"].gain, against["disc:2"].gain_low) == (None, None)


def test_a_metric_without_a_meaning_for_some_queries() -> None:
    nan = float("nan")
    one = MetricValues("RR@10", 0.5, np.array([1.0, nan, 0.0]))
    two = MetricValues("RR@10", 0.5, np.array([0.0, nan, 1.0]))
    pooled = pool([one, two])
    assert pooled.value == 0.5
    assert np.array_equal(pooled.per_query, np.array([0.5, nan, 0.5]), equal_nan=True)


def test_metrics_asked_for_are_shown_and_the_first_leads() -> None:
    settings = Settings("trie", ("RR@10", "invalid", "P@1"), 200)
    (comparison,) = compare([ASKED], RUNS, settings)
    assert comparison.primary == "RR@10"
    assert comparison.metrics == ("RR@10", "P@1")  # rates stand in columns of their own
    assert list(comparison.methods[0].figures) == ["RR@10", "P@1"]
    for asked, leading in ((("NO_MATCH", "P@1"), "P@1"), (("invalid", "errors"), "nDCG@10")):
        assert finding({"trie": RIGHT}, ASKED, asked).startswith(
            f"On asked, `trie` has the highest {leading}"
        )


def test_a_run_of_another_system_has_no_times() -> None:
    run = make_run(ASKED, "run:x", RIGHT, seconds=0.0)
    (comparison,) = compare([ASKED], [run], Settings("run:x", num_resamples=200))
    assert comparison.methods[0].times is None


METHODS = ("unconstrained", "trie", "disc:1", "disc:2x2/4+top:50", "beam:10", "exact", "vectors", "auto")
METHODS += ("shortlist:20", "auto:50+weight:2.5+disc", "bm25-shortlist", "bm25", "run:a.run")
FACTS = Facts("Evaluation of <an> index", 64, (("index", "a | b"),), "genret evaluate --out 'a b'")
TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]).filter(lambda c: c != "`"), min_size=1, max_size=30
)


class Reader(HTMLParser):
    """Collects the text of a page, and checks that elements close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def runs_on(labelled: LabelledSet) -> list[MethodRun]:
    return [make_run(labelled, name, ["Q1"] * len(labelled.queries)) for name in METHODS]


@pytest.fixture(scope="module")
def report() -> list[object]:
    sets = [query_set(), mention_set()]
    settings = Settings("trie", num_resamples=200)
    comparisons = compare(sets, [run for s in sets for run in runs_on(s)], settings)
    overview = make_overview(comparisons, "trie")
    drawings = [Drawing(name, "<svg></svg>", "caption") for name in ("overview", "set-asked", "set-marked")]
    return list(make_document(FACTS, settings, comparisons, overview, drawings))


def test_every_method_and_every_column_is_explained(report: list[object]) -> None:
    terms = {term for block in report if isinstance(block, TermList) for term, _ in block.items}
    tables = [block for block in report if isinstance(block, Table)]
    assert len(tables) == 3
    assert {f"`{name}`" for name in METHODS} <= terms
    known = {*terms, "method", "Δ to trie", "ms per query", "mean", "mean against trie", "seconds in all"}
    columns = {name for table in tables[1:] for name in table.header}
    assert columns <= known
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)
    assert sum(isinstance(block, Drawing) for block in report) == 3


def finding(
    answers: dict[str, list[str]], labelled: LabelledSet, metrics: tuple[str, ...] | None = None
) -> str:
    """Return what a report says first of a set."""
    runs = [make_run(labelled, method, entity_ids) for method, entity_ids in answers.items()]
    settings = Settings("trie", metrics, num_resamples=200)
    blocks = make_document(FACTS, settings, compare([labelled], runs, settings), None, [])
    paragraphs = [block.text for block in blocks if isinstance(block, Paragraph)]
    return "\n".join(paragraphs[1:])


def test_methods_that_are_equal_share_the_first_place() -> None:
    text = finding({"trie": ["Q1"] * 6, "disc:2": RIGHT, "beam": RIGHT}, query_set())
    assert "`disc:2`, `beam` have the highest nDCG@10, 1.000" in text
    # 5 of 6 queries differ: p is at least 1/16, whatever the resamples say.
    assert "Higher than `trie` with an adjusted p below 0.05: none; lower: none." in text
    assert "Intervals rest on 6 queries: with fewer than 30 they come out too narrow and p too small" in text
    assert "Intervals rest on 3 documents" in finding({"trie": ["Q4"] * 4}, mention_set())


def test_lists_are_told_apart_from_single_answers() -> None:
    answers = {"trie": ["Q1"] * 6, "disc:2/4": ["Q2"] * 6, "unconstrained": ["Q3"] * 6}
    told = "nDCG@10 looks beyond the first answer, and `trie`, `unconstrained` give no more than one title"
    assert told in finding(answers, query_set())
    assert "looks beyond" not in finding(answers, query_set(), ("Success@1",))
    assert "looks beyond" not in finding({"trie": ["Q1"] * 6, "disc:2": ["Q1"] * 6}, query_set())
    assert "looks beyond" not in finding({"beam": ["Q1"] * 6, "bm25": ["Q1"] * 6}, query_set())


def test_a_metric_that_means_nothing_is_not_led_by_anyone() -> None:
    nils = tuple(replace(query, gold={}, is_nil=True) for query in mention_set().queries)
    labelled = replace(mention_set(), queries=nils)
    text = finding({"trie": ["Q4"] * 4, "beam": ["Q5"] * 4}, labelled, ("RR@10",))
    assert "On marked, RR@10 has no meaning for any query." in text
    assert "nan" not in text


def test_a_page_stands_alone(report: list[object]) -> None:
    page = to_html(report)  # type: ignore[arg-type]
    reader = read(page)
    assert reader.links == []
    assert "<script" not in page
    assert "url(" not in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    text = "".join(reader.texts)
    assert "Evaluation of <an> index" in text
    assert FACTS.command in text


def test_markdown_says_the_same(report: list[object]) -> None:
    text = to_markdown(report)  # type: ignore[arg-type]
    assert text.startswith("# Evaluation of \\<an\\> index\n")
    for name in METHODS:
        assert f"| `{name}` |" in text
    for name in ("overview", "set-asked", "set-marked"):
        assert f"(plots/{name}.svg)" in text
    widths = {}
    for line in text.splitlines():
        if line.startswith("|"):
            widths.setdefault(len(re.findall(r"(?<!\\)\|", line)), line)
    assert len(widths) <= 3  # one width per table


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_html_shows_any_text_as_it_is(texts: list[str]) -> None:
    blocks = [
        Heading(1, texts[0]),
        Paragraph(texts[0]),
        TermList(tuple((text, text) for text in texts)),
        Code(texts[0]),
        Table(texts[0], tuple(texts), (tuple(Cell(text, text) for text in texts),)),
    ]
    shown = read(to_html(blocks)).texts
    for text in texts:
        assert text in shown


@given(TEXTS, TEXTS)
def test_markdown_tables_keep_their_columns(first: str, second: str) -> None:
    row = (Cell(second, first), Cell("`a|b`", is_best=True))
    table = to_markdown([Table("caption", (first, "`x`"), (row,))])
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len(lines) == 3
    for line in lines:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3


def test_results_are_json_without_nan() -> None:
    labelled = query_set()
    comparisons = compare([labelled], runs_on(labelled), Settings("trie", num_resamples=200))
    document = to_json(FACTS, Settings("trie"), comparisons, None)
    methods = json.loads(json.dumps(document, allow_nan=False))["sets"][0]["methods"]
    assert [m["method"] for m in methods] == list(METHODS)


def test_what_disc_is_is_said_once() -> None:
    said = dict(describe_methods(["disc:2", "trie", "disc:3/8+adaptive"]))
    assert said["`disc:2`"].startswith("DISC.")
    assert said["`disc:3/8+adaptive`"].startswith("As `disc:2`: up to 3 draws")
    assert "8 samples" in said["`disc:3/8+adaptive`"]


@pytest.mark.parametrize("name", ["nDCG@10", "R@5(KILT)", "F1(InKB)", "AP", "RR@3", "RBP(p=0.8)"])
def test_every_metric_has_words(name: str) -> None:
    assert describe_metric(name).endswith(".")


def test_a_drawing_names_every_method_and_takes_the_colour_of_the_page() -> None:
    points = [
        Point(name, 2.0 * (i + 1), Interval(0.1 * i, 0.1 * i - 0.05, 0.1 * i + 0.05), 0.1 * i)
        for i, name in enumerate([*METHODS, "disc:2", "disc:3"])
    ]
    svg = draw(points, "nDCG@10")
    root = ElementTree.fromstring(svg)
    assert "viewBox" in root.attrib
    assert "width" not in root.attrib
    texts = {"".join(element.itertext()).strip() for element in root.iter() if element.tag.endswith("}text")}
    assert {point.method for point in points} <= texts
    assert "nDCG@10" in texts
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "#ffffff" not in svg  # it lies on the page, whatever its colour
    on_paper = draw(points, "nDCG@10", "#ffffff")
    assert "currentColor" not in on_paper
    assert "#ffffff" in on_paper
    assert draw(points, "nDCG@10") == svg  # the same figures give the same file
    ElementTree.fromstring(draw([Point("bm25", 0.2, None, 0.5)], "mean"))  # one point without interval
