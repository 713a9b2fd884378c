"""Logs are one record a line; manual, dashboard and alerts name metrics, labels and fields that exist."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from genret.service.call import CallScope, enter
from genret.service.configuration.server_config import LogConfig
from genret.service.observability.logs import JsonFormatter, TextFormatter, configure
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
    names = r"`(genret_[a-z_]+|process_[a-z_]+|python_gc_[a-z_]+)`"
    assert set(re.findall(names, MANUAL.read_text("utf-8"))) <= set(known)


def family_of(series: str, known: dict[str, Family]) -> Family | None:
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


def rules() -> list[dict[str, Any]]:
    return [r for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for r in group["rules"]]


def expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (rule["expr"] for rule in rules())


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
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 8
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert re.fullmatch(r"\d+m", rule["for"]), rule["alert"]
        assert rule["annotations"]["summary"].strip(), rule["alert"]
        assert rule["annotations"]["description"].strip(), rule["alert"]


_NAMES = ("", "genret.requests", "tests.logs")
LOG = logging.getLogger("tests.logs")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _NAMES]
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    yield
    logging.captureWarnings(False)
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def configured(format_: Literal["text", "json"], **options: Any) -> io.StringIO:
    stream = io.StringIO()
    configure(LogConfig(format=format_, level=options.pop("level", "info"), **options), stream)
    return stream


def entries(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def record(message: str, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("tests.logs", logging.INFO, __file__, 1, message, None, None)
    made.__dict__.update(extra)
    return made


def test_json_lines_have_time_level_logger_message_and_what_was_given() -> None:
    stream = configured("json")
    LOG.info("read %d rows", 3, extra={"rows": 3, "path": object})
    (entry,) = entries(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry.pop("time"))
    told = {"level": "info", "logger": "tests.logs", "message": "read 3 rows"}
    assert entry == told | {"rows": 3, "path": "<class 'object'>"}


def test_records_of_a_call_carry_its_id_unless_they_name_another() -> None:
    stream = configured("json")

    def call() -> None:
        enter(CallScope("abc", "Retrieve"))
        LOG.info("inside")
        LOG.info("named", extra={"request_id": "other"})

    copy_context().run(call)
    LOG.info("outside")
    assert [entry.get("request_id") for entry in entries(stream)] == ["abc", "other", None]


def test_extra_fields_never_replace_the_record_s_own() -> None:
    assert json.loads(JsonFormatter().format(record("m", level="high", time="never")))["level"] == "info"


@pytest.mark.parametrize("format_", ["text", "json"])
def test_a_traceback_is_there_and_cannot_pass_for_a_record(format_: Literal["text", "json"]) -> None:
    stream = configured(format_)
    forged = "boom\n2026-01-01T00:00:00.000000Z INFO tests.logs all is well\r\nand more"
    try:
        raise ValueError(forged)
    except ValueError:
        LOG.exception("failed")
    lines = stream.getvalue().splitlines()
    if format_ == "json":
        (entry,) = entries(stream)
        assert entry["exception"].startswith("Traceback")
        assert forged in entry["exception"]
    else:
        assert lines[0].endswith("ERROR tests.logs failed")
        assert len(lines) > 4
        assert all(line.startswith("    ") for line in lines[1:])


@given(st.text(), st.text(min_size=1), st.text())
def test_a_message_is_one_line_of_printable_text(message: str, name: str, value: str) -> None:
    line = TextFormatter().format(record(message.replace("%", ""), **{f"x{name}": value}))
    assert line.isprintable()
    assert len(line.splitlines()) == 1


@given(st.text(), st.one_of(st.text(), st.binary(), st.floats(), st.none(), st.lists(st.integers())))
def test_json_is_one_line_of_ascii(message: str, value: object) -> None:
    line = JsonFormatter().format(record(message.replace("%", ""), field=value))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line, parse_constant=_fail)["message"] == message.replace("%", "")


def _fail(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_half_a_surrogate_is_written_in_both_formats() -> None:
    assert "\\udc80" in TextFormatter().format(record("a\udc80"))
    assert json.loads(JsonFormatter().format(record("a\udc80")))["message"] == "a\udc80"


def test_text_shows_fields_as_words() -> None:
    fields = {"code": "OK", "seconds": 0.5, "queries": ["a b"], "note": "two words", "x": ""}
    line = TextFormatter().format(record("done", **fields))
    assert line.endswith(' INFO tests.logs done code=OK seconds=0.5 queries=["a b"] note="two words" x=""')


def test_levels_and_configuring_again() -> None:
    first = configured("text", level="warning")
    second = configured("text", level="warning")
    LOG.info("too much")
    LOG.warning("said")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


@pytest.mark.parametrize("wanted", [True, False])
def test_request_lines_come_at_any_level_when_wanted(wanted: bool) -> None:
    stream = configured("text", level="error", requests=wanted)
    logging.getLogger("genret.requests").info("Retrieve OK")
    assert ("Retrieve OK" in stream.getvalue()) is wanted


def test_warnings_and_uvicorn_go_the_same_way() -> None:
    with warnings.catch_warnings():  # of pytest's own, which would raise them
        warnings.simplefilter("always")
        stream = configured("json")
        warnings.warn("old\nway", UserWarning, stacklevel=1)
        logging.captureWarnings(False)
    logging.getLogger("uvicorn.error").error("failed", extra={"color_message": "\x1b[1mfailed"})
    warned, failed = entries(stream)
    assert warned["logger"] == "py.warnings"
    assert "old\nway" in warned["message"]
    assert (failed["logger"], failed["message"]) == ("uvicorn.error", "failed")
    assert "color_message" not in failed


def test_what_a_library_keeps_on_a_record_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(format="json", level="info"))
    logging.getLogger("tests.logs").warning("read", extra={"rows": 3, "_library_clock": 17})
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record["rows"] == 3
    assert not [name for name in record if name.startswith("_")]
