"""Cost tables as files."""

import json
from pathlib import Path
from typing import Any

import pytest

from vivace.errors import CheckpointError, NotFound
from vivace.schedule.costs import CostTable
from vivace.tables import find, learned, names, read, write

TABLE = CostTable({1: 0.01, 8: 0.02}, {1: {1: 0.001}, 4: {1: 0.002, 8: 0.004}}, {16: 0.005})


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "device.json"
    write(path, TABLE, device="a card", commit=None)
    write(path, TABLE, device="a card", commit="abc")
    assert read(path) == TABLE
    assert json.loads(path.read_text())["commit"] == "abc"
    assert [p.name for p in path.parent.iterdir()] == ["device.json"]


@pytest.mark.parametrize("name", names())
def test_the_tables_in_the_box_are_read_and_say_where_they_are_from(name: str) -> None:
    table = read(find(name))
    assert table.frame and table.voice
    about = json.loads(find(name).read_text())
    assert {"device", "model", "when", "command", "commit"} <= about.keys()


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    assert names() == ["cpu2", "h200"]
    with pytest.raises(NotFound, match="cpu2, h200"):
        find("h100")


def spoilt(**changes: Any) -> str:
    good = {"frame_ms": {"1": 1.0}, "voice_ms": {"1": {"1": 1.0}}, "prefill_ms": {"16": 1.0}}
    return json.dumps({**good, **changes})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("[]", "no cost table"),
        ("{}", "'frame_ms' is missing"),
        (spoilt(frame_ms={}), "needs a time"),
        (spoilt(frame_ms={"0": 1.0}), "from 1 up"),
        (spoilt(frame_ms={"-1": 1.0}), "'-1' is no size"),
        (spoilt(frame_ms={"x": 1.0}), "'x' is no size"),
        (spoilt(frame_ms={"1": 0}), "above zero"),
        (spoilt(frame_ms={"1": float("nan")}), "nan is no time"),
        (spoilt(frame_ms={"1": "1"}), "'1' is no time"),
        (spoilt(frame_ms={"1": True}), "True is no time"),
        (spoilt(frame_ms=3), "no cost table"),
        (spoilt(frame_ms={"1": 10**400}), "no cost table"),
        ("[" * 100_000, "no cost table"),
        (spoilt(voice_ms={"1": 1.0}), "no cost table"),
        (spoilt(voice_ms={}), "needs a time"),
        (spoilt(prefill_ms=None), "no cost table"),
    ],
)
def test_a_file_that_is_no_table_says_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=says) as caught:
        read(path)
    assert str(path) in caught.value.message


def test_a_file_that_cannot_be_read_is_an_error_of_the_tree(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        read(tmp_path / "none.json")


@pytest.mark.parametrize("spoils", [0, -3.0, 1e300, 10**400, float("nan"), True, "1", None, []])
def test_what_no_engine_learns_is_not_taken_over(tmp_path: Path, spoils: Any) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"learned": {"frame": spoils, "late_s": 7.0, "voice": 1.5}}))
    assert learned(path).get("frame", 1.0) == 1.0 and "late_s" not in learned(path)


def test_a_file_nested_too_deeply_has_learned_nothing(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text("[" * 100_000)
    assert learned(path) == {}
