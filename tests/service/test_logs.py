"""Logs: one record, one line (and an indented traceback), whatever a message holds."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.call import CallScope, entered
from service.configuration.server_config import LogConfig
from service.observability.logs import JsonFormatter, TextFormatter, configure

_NAMES = ("", "genret.requests", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "tests.logs")
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
    assert entry == {
        "level": "info",
        "logger": "tests.logs",
        "message": "read 3 rows",
        "rows": 3,
        "path": "<class 'object'>",
    }


def test_records_of_a_call_carry_its_id_unless_they_name_another() -> None:
    stream = configured("json")
    with entered(CallScope("abc", "Retrieve")):
        LOG.info("inside")
        LOG.info("named", extra={"request_id": "other"})
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
    line = TextFormatter().format(
        record("done", code="OK", seconds=0.5, queries=["a b"], note="two words", x="")
    )
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
    logging.getLogger("uvicorn").addHandler(logging.StreamHandler(io.StringIO()))
    logging.getLogger("uvicorn").propagate = False
    with warnings.catch_warnings():  # of pytest's own, which would raise them
        warnings.simplefilter("always")
        stream = configured("json")
        warnings.warn("old\nway", UserWarning, stacklevel=1)
        logging.captureWarnings(False)
    logging.getLogger("uvicorn.error").info("started", extra={"color_message": "\x1b[1mstarted"})
    logging.getLogger("uvicorn.access").info("GET /")
    warned, started = entries(stream)
    assert warned["logger"] == "py.warnings"
    assert "old\nway" in warned["message"]
    assert (started["logger"], started["message"]) == ("uvicorn.error", "started")
    assert "color_message" not in started


def test_what_a_library_keeps_on_a_record_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(format="json", level="info"))
    logging.getLogger("tests.logs").warning("read", extra={"rows": 3, "_library_clock": 17})
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record["rows"] == 3
    assert not [name for name in record if name.startswith("_")]
