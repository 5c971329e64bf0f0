"""Log lines on stderr, the same from every process: as text, or a JSON object each.

What a line is about travels beside its message, in the record's `about`: names and plain values.
Values are written as JSON in both forms, so no client's words can break a line or feign another.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def log_to_stderr(level: int, form: str = "text") -> None:
    """Our own log lines from `level` on; only the warnings of everybody else."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    logging.basicConfig(handlers=[handler])
    logging.getLogger("vivace").setLevel(level)


def form() -> str:
    """The form in use, for another process."""
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(one.formatter, Json) for one in handlers) else "text"


class Text(logging.Formatter):
    """`2026-11-30 12:00:00,123 INFO spoke request_id="a" took_ms=12.5`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without a traceback."""
        about = " ".join(f"{name}={_json(value)}" for name, value in _about(record).items())
        return f"{super().formatMessage(record)} {about}".rstrip()


class Json(logging.Formatter):
    """One object a line: time in UTC, level, message, what it is about, traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The whole line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {"time": when, "level": record.levelname.lower()}
        line |= {"logger": record.name, "message": record.getMessage(), **_about(record)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _json(line)


def _about(record: logging.LogRecord) -> Mapping[str, Any]:
    about: Mapping[str, Any] = getattr(record, "about", {})
    return {name: value for name, value in about.items() if value is not None}


def _json(value: object) -> str:
    return json.dumps(value, default=str)
