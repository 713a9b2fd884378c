"""Manual, dashboard and alerts name metrics, labels, fields and spans that exist, and all of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.service.full_metrics import Family, families

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "docs" / "observability.md"
DASHBOARD = ROOT / "deploy" / "genret-dashboard.json"
ALERTS = ROOT / "deploy" / "alerts.yaml"
# Of the scrape itself, and of what Prometheus adds to every sample.
_FOREIGN = {"up"}
_ADDED_LABELS = {"job", "instance", "le"}
_SERIES = re.compile(r"\b((?:genret|process|python|up)(?:_[a-z0-9_]+)?)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")


@pytest.fixture(scope="module")
def known() -> dict[str, Family]:
    return asyncio.run(families())


def table(known: dict[str, Family]) -> str:
    """Return the manual's table of metrics."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, family in sorted(known.items()):
        if name.startswith("genret_"):
            labels = ", ".join(f"`{label}`" for label in family.labels)
            lines.append(f"| `{name}` | {family.kind} | {labels} | {family.help} |")
    return "\n".join(lines)


def test_the_manual_has_the_table_of_all_metrics(known: dict[str, Family]) -> None:
    assert table(known) in MANUAL.read_text("utf-8"), f"docs/observability.md needs:\n\n{table(known)}"


def test_the_manual_names_no_metric_that_is_not_there(known: dict[str, Family]) -> None:
    named = set(
        re.findall(r"`(genret_[a-z_]+|process_[a-z_]+|python_gc_[a-z_]+)`", MANUAL.read_text("utf-8"))
    )
    assert named <= set(known)


def family_of(series: str, known: dict[str, Family]) -> Family | None:
    """Return the family a series belongs to."""
    if series in known:
        return known[series]
    base = known.get(re.sub(r"_(bucket|sum|count)$", "", series))
    return base if base is not None and base.kind == "histogram" else None


def check(expression: str, known: dict[str, Family]) -> None:
    """Hold a PromQL expression to the metrics there are, and to the labels they have."""
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing), expression
    labels = set(_ADDED_LABELS)
    found = _SERIES.findall(expression)
    assert found, expression
    for series, matchers in found:
        if series in _FOREIGN:
            continue
        family = family_of(series, known)
        assert family is not None, f"{series} in {expression}"
        matched = set(_MATCHER.findall(matchers))
        assert matched <= set(family.labels) | _ADDED_LABELS, f"{series}{{{matchers}}}"
        labels |= set(family.labels)
    for grouping in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(re.split(r",\s*", grouping)) <= labels, expression


def expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def test_dashboard_and_alerts_ask_for_series_that_exist(known: dict[str, Family]) -> None:
    asked = list(expressions())
    assert len(asked) > 40
    for expression in asked:
        check(expression, known)


def test_every_metric_of_ours_is_on_the_dashboard(known: dict[str, Family]) -> None:
    shown = " ".join(expressions())
    missing = {name for name in known if name.startswith("genret_") and name not in shown}
    # Sizes of an index change with its version alone; the software's version is for comparing servers.
    expected = {"genret_index_rows", "genret_index_entities", "genret_build_info"}
    expected |= {"genret_filter_cache_evictions_total", "genret_grammar_cache_evictions_total"}
    assert missing == expected


@pytest.mark.parametrize(
    "wrong",
    [
        'rate(genret_requests_totals{job="genret"}[5m])',
        "genret_requests_total{colour=~'x'}",
        "sum by (colour) (genret_requests_total)",
        "rate(genret_requests_total[5m]",
        "genret_ready_bucket",
        "1 + 1",
    ],
)
def test_the_check_finds_mistakes(wrong: str, known: dict[str, Family]) -> None:
    with pytest.raises(AssertionError):
        check(wrong, known)


def test_panels_have_their_own_places_and_ids() -> None:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_alerts_say_what_to_do() -> None:
    rules = [r for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for r in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert re.fullmatch(r"\d+m", rule["for"]), rule["alert"]
        assert rule["annotations"]["summary"].strip(), rule["alert"]
        assert rule["annotations"]["description"].strip(), rule["alert"]
