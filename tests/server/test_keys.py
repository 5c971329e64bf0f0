"""API keys, and how much one may ask for."""

import base64
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.errors import InvalidRequest, Overloaded
from vivace.server.keys import Keys, load_keys, shown_by
from vivace.server.quota import Quotas

AMY, BOB = "amy-key-0123456789", "bob-key-9876543210"


def http(query: str = "", kind: str = "http", **headers: str) -> dict[str, object]:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": kind, "headers": raw, "query_string": query.encode()}


def test_a_key_has_a_name() -> None:
    keys = Keys({"amy": AMY, "bob": BOB})
    assert keys and not Keys({})
    assert [keys.name_of(key) for key in (AMY, BOB)] == ["amy", "bob"]


@given(st.text())
def test_nothing_else_has_one(shown: str) -> None:
    keys = Keys({"amy": AMY, "bob": BOB})
    assert keys.name_of(shown) is None
    assert keys.name_of(AMY + shown) == (None if shown else "amy")
    assert keys.name_of(AMY[:-1]) is None


def test_the_keys_are_not_kept() -> None:
    keys = Keys({"amy": AMY})
    assert AMY not in repr(vars(keys))


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("amy", "short", "16 or more printable"),
        ("amy", "with a space in the middle", "without a space"),
        ("a\nb", AMY, "must be a short word"),
        ("", AMY, "must be a short word"),
        ("-" * 65, AMY, "must be a short word"),
    ],
)
def test_a_key_that_can_be_guessed_is_refused(name: str, key: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        Keys({name: key})
    assert key not in refused.value.message or key == "short"


def test_keys_come_from_a_file_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who may speak\n\n amy = {AMY}=\nbob={BOB}\n", encoding="utf-8")
    file.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        keys = load_keys({"eve": "eve-key-0000000000"}, file)
    assert keys.name_of(AMY + "=") == "amy"
    assert keys.name_of("eve-key-0000000000") == "eve"
    assert not caplog.records
    file.chmod(0o644)
    load_keys({}, file)
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [("amy", "line 1: not a name=key"), (f"a={AMY}\na={BOB}", "line 2: 'a' is given twice")],
)
def test_a_bad_file_is_refused_without_its_secrets(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=words) as refused:
        load_keys({}, file)
    assert BOB not in refused.value.message


@pytest.mark.parametrize(
    ("scope", "shown"),
    [
        (http(), None),
        (http(authorization="Bearer k"), "k"),
        (http(authorization="bearer  k "), "k"),
        (http(authorization="Digest k"), None),
        (http(authorization="Basic " + base64.b64encode(b"me:k").decode()), "k"),
        (http(authorization="Basic " + base64.b64encode(b"k:").decode()), "k"),
        (http(authorization="Basic =="), None),
        (http(authorization="Basic /w=="), None),
        (http(xi_api_key="k"), "k"),
        (http(x_api_key="k"), "k"),
        (http(authorization="Bearer a", x_api_key="b"), "a"),
        (http("api_key=k"), None),
        (http("api_key=k", "websocket"), "k"),
        (http("xi-api-key=k", "websocket"), "k"),
        (http("access_token=k", "websocket"), "k"),
    ],
)
def test_where_a_key_is_shown(scope: dict[str, object], shown: str | None) -> None:
    assert shown_by(scope) == shown


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_so_many_at_a_time() -> None:
    quotas = Quotas(2, 0)
    quotas.take("amy")
    quotas.take("amy")
    with pytest.raises(Overloaded) as refused:
        quotas.take("amy")
    assert (refused.value.code, refused.value.retry_after_s) == ("key_busy", 1.0)
    quotas.take("bob")
    quotas.give_back("amy")
    quotas.take("amy")


def test_so_many_a_minute_and_when_to_come_back() -> None:
    clock = Clock()
    quotas = Quotas(0, 4, clock)
    for _ in range(4):
        quotas.take("amy")
    with pytest.raises(Overloaded) as refused:
        quotas.take("amy")
    assert (refused.value.code, refused.value.retry_after_s) == ("key_often", 15.0)
    quotas.take("bob")
    clock.now_s = 15.0
    quotas.take("amy")
    with pytest.raises(Overloaded):
        quotas.take("amy")
    clock.now_s = 1e6
    for _ in range(4):
        quotas.take("amy")


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=200))
def test_never_more_than_two_minutes_worth_in_any_minute(steps: list[tuple[int, bool]]) -> None:
    clock, taken = Clock(), list[float]()
    quotas = Quotas(0, 6, clock)
    for wait_s, _ in steps:
        clock.now_s += wait_s
        try:
            quotas.take("amy")
        except Overloaded as error:
            assert 0 < error.retry_after_s <= 10
        else:
            taken.append(clock.now_s)
    for begin_s in taken:
        assert sum(begin_s <= at_s < begin_s + 60 for at_s in taken) <= 12


def test_without_limits_there_are_none() -> None:
    quotas = Quotas(0, 0)
    for _ in range(10_000):
        quotas.take("amy")
