"""docs/http.md says what the code does."""

import re
from pathlib import Path

from tests.server.test_fields import WIRE_FIELDS

from vivace.audio.encode import FORMATS
from vivace.config import Limits, ServerConfig
from vivace.server.names import MODEL_ALIASES, OPENAI_VOICES

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in PAGE.splitlines()
    if row[:1] == "|"
]


def test_the_field_table_is_whole() -> None:
    first = ROWS.index(["field", "values", "without it"])
    table = ROWS[first + 2 : ROWS.index(list(OPENAI_VOICES))]
    assert {name for row in table for name in re.findall(r"`(\w+)`", row[0])} == WIRE_FIELDS
    (model,) = (row for row in table if row[0] == "`model`")
    assert all(f"`{alias}`" in model[1] for alias in MODEL_ALIASES)


def test_the_voice_table_is_the_codes() -> None:
    assert ROWS[ROWS.index(list(OPENAI_VOICES)) + 2] == list(OPENAI_VOICES.values())


def test_the_sound_table_is_the_codes() -> None:
    first = ROWS.index(["format", "content type", "what it is", "`sample_rate`"])
    told = {}
    for names, kinds, _, rates in ROWS[first + 2 : first + 2 + len(FORMATS)]:
        for name, kind in zip(names.split(", "), kinds.split(", "), strict=True):
            told[name.strip("`")] = (kind.strip("`"), rates)
        if len(told) == len(FORMATS):
            break
    for form in FORMATS.values():
        known = ", ".join(map(str, form.rates))
        if isinstance(form.rates, range):
            known = f"{form.rates[0]} to {form.rates[-1]}"
        assert told[form.name] == (form.media_type, known)


def test_the_limits_are_the_codes() -> None:
    limits, server = Limits(), ServerConfig()
    assert f"up to {limits.text_chars:,} characters" in PAGE
    assert f"up to {limits.instruct_chars:,} characters" in PAGE
    assert f"1 to {limits.batch_items} requests" in PAGE
    assert f"at most {limits.body_bytes >> 20} MiB" in PAGE
    assert f"in the last {server.heartbeat_s:g} s" in PAGE
    assert f"takes nothing for {server.stall_s:g} s" in PAGE
    assert f"for up to {server.drain_s} s" in PAGE
