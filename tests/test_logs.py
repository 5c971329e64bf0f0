"""Log lines: text for people, JSON for machines, one line each whatever a client says."""

import json
import logging
import sys

import pytest

from vivace.logs import Json, Text


def record(message: str = "spoke", **about: object) -> logging.LogRecord:
    made = logging.LogRecord("vivace.x", logging.INFO, "x.py", 1, message, (), None)
    if about:
        made.about = about
    return made


def test_text_has_names_and_values() -> None:
    line = Text().format(record(request_id="a", took_ms=1.5, voice=None, stalls=0))
    assert line.endswith('INFO spoke request_id="a" took_ms=1.5 stalls=0')


def test_a_line_without_more_is_as_it_was() -> None:
    assert Text().format(record("ready")).endswith("INFO ready")


def test_json_is_one_object() -> None:
    line = json.loads(Json().format(record(request_id="a", took_ms=1.5, voice=None)))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "vivace.x",
        "message": "spoke",
        "request_id": "a",
        "took_ms": 1.5,
    }


@pytest.mark.parametrize("form", [Text(), Json()])
@pytest.mark.parametrize("text", ['a\nINFO spoke reason="stop"', '"', "\u2028", "\x1b[31m", "é\0"])
def test_a_clients_words_stay_in_their_value(form: logging.Formatter, text: str) -> None:
    line = form.format(record(error=text))
    assert line.isascii()
    assert line.isprintable()
    assert json.dumps(text) in line


def test_a_traceback_is_part_of_the_object() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        made = record()
        made.exc_info = sys.exc_info()
    assert "KeyError: 'x'" in json.loads(Json().format(made))["traceback"]
