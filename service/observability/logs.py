"""Logs on stderr: lines for people, or one JSON object a line for machines.

Text from outside cannot begin a line: line ends in messages are escaped, tracebacks are indented or quoted.
Every record of a call carries the call's id.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from genret.service.call import current_scope
from genret.service.configuration.server_config import LogConfig

# Logger of the lines about calls, which are configured apart from the level of all else.
REQUEST_LOGGER = "genret.requests"
_LIFE = logging.getLogger("genret.life")
# A record's own attributes; others were given as `extra`.
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "request_id"}
_OWN |= {"color_message"}  # uvicorn's copy of the message
_INDENT = "    "


def configure(config: LogConfig, stream: TextIO | None = None) -> None:
    """Send all records and Python's warnings to stderr, or to `stream`. The last call counts."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter())
    handler.set_name(__name__)
    root = logging.getLogger()
    for old in [h for h in root.handlers if h.get_name() == __name__]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(config.level.upper())
    # Request lines are written at any level.
    logging.getLogger(REQUEST_LOGGER).setLevel(logging.INFO if config.requests else logging.NOTSET)
    _LIFE.setLevel(logging.INFO)
    logging.captureWarnings(True)


def announce(config: LogConfig, text: str, level: int = logging.INFO) -> None:
    """Report a state of the server on stderr, at any level: as "genret: ...", or as a JSON record."""
    if config.format == "json":
        _LIFE.log(level, text)
    else:
        print(f"genret: {escaped(text)}", file=sys.stderr, flush=True)


class TextFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER [REQUEST] MESSAGE name=value ...`; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as text."""
        request_id = _request_id(record)
        parts = [_time(record), record.levelname, escaped(record.name)]
        if request_id:
            parts.append(f"[{escaped(request_id)}]")
        parts.append(escaped(record.getMessage()))
        parts += [f"{escaped(name)}={_shown(value)}" for name, value in _extra(record).items()]
        return f"\n{_INDENT}".join([" ".join(parts), *map(escaped, _exception(record).splitlines())])


class JsonFormatter(logging.Formatter):
    """One JSON object: time, level, logger, message, request_id, exception, and the record's extras."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line of JSON."""
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = _request_id(record)
        if request_id:
            entry["request_id"] = request_id
        exception = _exception(record)
        if exception:
            entry["exception"] = exception
        for name, value in _extra(record).items():
            entry.setdefault(name, _plain(value))
        # ASCII: no reader takes U+2028 for an end of line, and half a surrogate has a form.
        return json.dumps(entry, ensure_ascii=True)


def _time(record: logging.LogRecord) -> str:
    """Return a record's time: RFC 3339, UTC, with microseconds."""
    made = datetime.fromtimestamp(record.created, UTC)
    return made.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _request_id(record: logging.LogRecord) -> str:
    given = record.__dict__.get("request_id")
    if given:
        return str(given)
    scope = current_scope()
    return "" if scope is None else scope.request_id


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {
        name: value
        for name, value in record.__dict__.items()
        # Names with "_" are a library's own: Ray puts its clock on every record.
        if name not in _OWN and not name.startswith("_")
    }


def _exception(record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(logging.Formatter().formatException(record.exc_info))
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


def _plain(value: object) -> object:
    """Return a value as JSON holds it, or its text, as for NaN and objects."""
    if value is None or isinstance(value, str | bool | int):
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _shown(value: object) -> str:
    """Return a value as one word, or quoted."""
    text = value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False)
    if isinstance(value, str) and (not text or any(c in ' "=' or not c.isprintable() for c in text)):
        text = json.dumps(text, ensure_ascii=False)
    return escaped(text)


def escaped(text: str) -> str:
    """Return text with unprintable characters, such as line ends, as Python's escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clipped(text: str, max_chars: int) -> str:
    """Return escaped text, cut after `max_chars` characters."""
    if len(text) <= max_chars:
        return escaped(text)
    return escaped(text[:max_chars]) + "..."
