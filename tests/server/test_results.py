"""Speech from disk: the same bytes as the first time, and never another's."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.fakes import FakeEngine, Play
from tests.server.live import serving
from tests.voices.makers import clone

from vivace.audio.encode import FORMATS
from vivace.config import EngineConfig, ServerConfig
from vivace.errors import InvalidRequest, Unavailable, VivaceError
from vivace.model.spec import Prints
from vivace.server import results as results_module
from vivace.server.results import NEUTRAL, Result, Results, key_of
from vivace.types import Clone, FinishReason, Sampling, SpeechRequest, TextMode

SPEECH = "/v1/audio/speech"
KEYS = [f"{number:064x}" for number in range(20)]


def result(seed: int = 0, samples: int = 1000) -> Result:
    pcm = np.random.default_rng(seed).integers(-32767, 32768, samples).astype(np.int16)
    return Result(pcm, frames=3, text_tokens=5, seed=seed, skipped=("😊",))


def equal(one: Result | None, other: Result) -> bool:
    return (
        one is not None
        and np.array_equal(one.pcm, other.pcm)
        and replace(one, pcm=other.pcm) == other
    )


# The store itself.


def test_all_of_a_result_is_there_after_a_restart(tmp_path: Path) -> None:
    Results(tmp_path, 1 << 20).put(KEYS[0], result())
    again = Results(tmp_path, 1 << 20)
    assert equal(again.get(KEYS[0]), result())
    assert again.get(KEYS[1]) is None
    assert (again.counts.hits, again.counts.misses) == (1, 1)


def test_the_least_recently_used_goes(tmp_path: Path) -> None:
    store = Results(tmp_path, 10 * 2_400)  # an entry has some 2,200 bytes
    for number in range(10):
        store.put(KEYS[number], result(number))
    assert store.get(KEYS[0]) is not None
    for number in (10, 11):
        store.put(KEYS[number], result(number))
    kept = [number for number in range(12) if store.get(KEYS[number]) is not None]
    assert 0 in kept and 1 not in kept and {10, 11} <= set(kept)
    assert store.bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert store.bytes <= store.most_bytes
    assert store.counts.dropped == 12 - len(kept)


def test_the_order_outlives_a_restart(tmp_path: Path) -> None:
    store = Results(tmp_path, 1 << 20)
    for number in range(3):
        store.put(KEYS[number], result(number))
        os.utime(tmp_path / f"{KEYS[number]}.safetensors", (number, number))
    store.get(KEYS[0])
    size = store.bytes // 3
    again = Results(tmp_path, 2 * size + 10)  # less room than before
    assert [again.get(KEYS[number]) is not None for number in range(3)] == [True, False, True]


def test_what_is_too_long_is_not_kept(tmp_path: Path) -> None:
    store = Results(tmp_path, 10_000)
    store.put(KEYS[0], result(samples=1000))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: os.urandom(1000),
        lambda data: b"\x80\x04\x95" + data,
    ],
)
def test_a_spoilt_entry_is_dropped_and_counted(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    store = Results(tmp_path, 1 << 20)
    store.put(KEYS[0], result())
    (path,) = tmp_path.iterdir()
    path.write_bytes(spoil(path.read_bytes()))
    assert store.get(KEYS[0]) is None
    assert (store.counts.spoilt, store.bytes) == (1, 0)
    assert list(tmp_path.iterdir()) == []
    store.put(KEYS[0], result())
    assert equal(store.get(KEYS[0]), result())


def test_an_entry_somebody_removed_is_a_miss(tmp_path: Path) -> None:
    store = Results(tmp_path, 1 << 20)
    store.put(KEYS[0], result())
    (path,) = tmp_path.iterdir()
    path.unlink()
    assert store.get(KEYS[0]) is None
    assert (store.bytes, store.counts.spoilt) == (0, 0)


def test_a_full_disk_keeps_nothing_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Results(tmp_path, 1 << 20)
    store.put(KEYS[0], result())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(results_module.os, "replace", full)
    store.put(KEYS[1], result(1))
    assert store.counts.failed == 1
    assert store.get(KEYS[1]) is None
    assert equal(store.get(KEYS[0]), result())
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_killed_server_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-x").write_bytes(b"half")
    Results(tmp_path, 1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be used"):
        Results(tmp_path / "file" / "results", 1 << 20)


# What a key stands for.

OTHER: dict[str, object] = {
    "voice": "ryan",
    "language": "english",
    "instruct": "Whisper.",
    "text_mode": TextMode.WHOLE,
    "sampling": Sampling(seed=1),
    "clone": clone(),
    "guards": False,
    "trim": False,
    "normalize": False,
}


def key(text: str = "Hello.", engine: FakeEngine | None = None, **wishes: Any) -> str:
    return key_of(engine or FakeEngine(), text, SpeechRequest(**wishes))  # type: ignore[arg-type]


def test_every_field_that_shapes_the_sound_is_in_the_key() -> None:
    names = {field.name for field in fields(SpeechRequest)} - {"patient", "model"}
    assert names == set(OTHER), "a new field of a request: give it another value above"
    keys = {key(), *(key(**{name: value}) for name, value in OTHER.items())}
    assert len(keys) == len(OTHER) + 1
    assert key(patient=True) != key(), "it may be drawn again"
    once = FakeEngine()
    once.config = EngineConfig(redraws=0)
    greedy = Sampling(temperature=0.0, subtalker_temperature=0.0)
    alike: list[dict[str, Any]] = [{"guards": False}, {"sampling": greedy}, {"engine": once}]
    for never in alike:  # then nothing is
        assert key(patient=True, **never) == key(**never)
    assert key(model="vivace-fake") == key(), "its weights count, not its name"


def test_every_field_of_the_sampling_is_in_the_key() -> None:
    plain = Sampling()
    keys = {key(sampling=plain)}
    for field in fields(Sampling):
        value = getattr(plain, field.name)
        keys.add(key(sampling=replace(plain, **{field.name: (value or 0) + 1})))
    assert len(keys) == len(fields(Sampling)) + 1


def test_case_29_a_clone_counts_by_its_content() -> None:
    assert key(clone=clone(1)) == key(clone=clone(1)) != key(clone=clone(2))
    plain = clone(1)
    assert key(clone=plain) != key(clone=Clone(plain.x_vector))


def test_text_counts_as_it_is_read() -> None:
    assert key("hel\u200blo \u00a0 you\r\n") == key("hello   you")
    assert key("Hello!") != key("Hello.") != key("hello.")
    with pytest.raises(InvalidRequest):
        key("a\ud800b")


def test_the_model_and_its_setting_are_in_the_key() -> None:
    def engine(model: str = "m", **config: Any) -> FakeEngine:
        engine = FakeEngine()
        engine.spec.prints, engine.config = Prints(model), EngineConfig(**config)
        return engine

    plain = key(engine=engine())
    assert key(engine=engine()) == plain
    assert key(engine=engine("other")) != plain
    for wishes in ({"dtype": "float32"}, {"piece_s": 3.0}, {"normalize": False}, {"trim": False}):
        assert key(engine=engine(**wishes)) != plain
    assert key(engine=engine(max_sessions=3)) == plain
    assert {field.name for field in fields(EngineConfig)} >= NEUTRAL


# Over HTTP.


@pytest.fixture(scope="module")
def _stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeEngine, httpx.Client]]:
    engine, folder = FakeEngine(), tmp_path_factory.mktemp("results")
    with (
        serving(engine, ServerConfig(cache_dir=folder)) as live,
        httpx.Client(base_url=live.url, timeout=30) as client,
    ):
        yield engine, client


@pytest.fixture
def engine(_stage: tuple[FakeEngine, httpx.Client]) -> FakeEngine:
    _stage[0].reset()
    return _stage[0]


@pytest.fixture
def client(_stage: tuple[FakeEngine, httpx.Client], engine: FakeEngine) -> httpx.Client:
    return _stage[1]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits until one more result is on the disk."""
    done, put = threading.Semaphore(0), Results.put

    def told(self: Results, key: str, result: Result) -> None:
        put(self, key, result)
        done.release()

    monkeypatch.setattr(Results, "put", told)

    def wait() -> None:
        assert done.acquire(timeout=30)

    return wait


def ask(client: httpx.Client, text: str, **fields: object) -> httpx.Response:
    reply = client.post(SPEECH, json={"input": text, "cache": True, **fields})
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_hit_has_the_bytes_of_the_miss(
    client: httpx.Client, engine: FakeEngine, kept: Callable[[], None], form: str
) -> None:
    engine.play = Play(chunks=20)
    first = ask(client, f"In {form}.", response_format=form, speed=1.5)
    kept()
    second = ask(client, f"In {form}.", response_format=form, speed=1.5)
    assert [r.headers["x-vivace-cache"] for r in (first, second)] == ["miss", "hit"]
    assert first.content == second.content
    engine.next_session()
    assert engine.sessions.empty()  # the engine was asked once


def test_one_result_serves_every_shape(
    client: httpx.Client, engine: FakeEngine, kept: Callable[[], None]
) -> None:
    ask(client, "Shapes.", response_format="pcm")
    kept()
    events = ask(client, "Shapes.", stream_format="sse")
    quick = ask(client, "Shapes.", speed=2, response_format="pcm", sample_rate=16_000)
    assert {r.headers["x-vivace-cache"] for r in (events, quick)} == {"hit"}
    assert "speech.audio.done" in events.text
    assert len(quick.content) == 3 * 1920 * 2 // 2 * 16 // 24
    engine.next_session()
    assert engine.sessions.empty()
    fields = {"stream": False, "response_format": "wav"}
    whole = ask(client, "Shapes.", **fields)  # what nobody hears yet may have been drawn again
    kept()
    again = ask(client, "Shapes.", **fields)
    assert [r.headers["x-vivace-cache"] for r in (whole, again)] == ["miss", "hit"]
    assert again.headers["x-finish-reason"] == "stop"


def test_only_who_asks_is_served_from_it(client: httpx.Client, kept: Callable[[], None]) -> None:
    ask(client, "Opt in.")
    kept()
    for wish in ({}, {"cache": False}, {"cache": None}):
        reply = client.post(SPEECH, json={"input": "Opt in.", **wish})
        assert "x-vivace-cache" not in reply.headers
    assert ask(client, "Opt in.").headers["x-vivace-cache"] == "hit"


@pytest.mark.parametrize(
    "reason", [reason for reason in FinishReason if reason is not FinishReason.STOP]
)
def test_only_speech_to_its_own_end_is_kept(
    client: httpx.Client, engine: FakeEngine, reason: FinishReason, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[str] = []
    monkeypatch.setattr(Results, "put", lambda *_: puts.append("put"))
    engine.play = Play(reason=reason, fault=VivaceError("scripted"))
    body = {"input": f"Ends {reason}.", "cache": True, "stream": False}
    first = client.post(SPEECH, json=body)
    second = client.post(SPEECH, json=body)
    assert "hit" not in (first.headers.get("x-vivace-cache"), second.headers.get("x-vivace-cache"))
    assert puts == []


def test_a_fault_in_the_middle_keeps_nothing(
    client: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[str] = []
    monkeypatch.setattr(Results, "put", lambda *_: puts.append("put"))
    engine.play = Play(fault_at=1)
    with pytest.raises(httpx.RemoteProtocolError):
        ask(client, "Breaks off.", response_format="pcm")
    assert puts == []


def test_a_batch_and_its_items(
    client: httpx.Client, engine: FakeEngine, kept: Callable[[], None]
) -> None:
    ask(client, "One of two.", stream=False)
    kept()
    items = [{"input": "One of two."}, {"input": "Two of two."}]
    body = {"items": items, "cache": True, "response_format": "wav"}
    reply = client.post(f"{SPEECH}/batch", json=body).json()
    assert [item["cache"] for item in reply["results"]] == ["hit", "miss"]


def test_an_operator_can_ask_for_all(tmp_path: Path, kept: Callable[[], None]) -> None:
    engine, config = FakeEngine(), ServerConfig(cache=True, cache_dir=tmp_path)
    with serving(engine, config) as live, httpx.Client(base_url=live.url) as client:
        first = client.post(SPEECH, json={"input": "Hello."})
        kept()
        second = client.post(SPEECH, json={"input": "Hello."})
        other = client.post(SPEECH, json={"input": "Hello.", "cache": False})
    seen = [r.headers.get("x-vivace-cache") for r in (first, second, other)]
    assert seen == ["miss", "hit", None]


def test_without_a_folder_a_wish_for_it_is_answered(engine: FakeEngine) -> None:
    with serving(engine) as live, httpx.Client(base_url=live.url) as client:
        reply = client.post(SPEECH, json={"input": "Hello.", "cache": True})
    assert "keeps no results" in reply.headers["x-vivace-warning"]
    assert "x-vivace-cache" not in reply.headers


def test_a_client_that_leaves_a_replay_ends_it(
    client: httpx.Client, engine: FakeEngine, kept: Callable[[], None]
) -> None:
    engine.play = Play(chunks=500)
    ask(client, "Leave.", response_format="pcm")
    kept()
    fields = {"input": "Leave.", "cache": True, "response_format": "pcm"}
    with client.stream("POST", SPEECH, json=fields) as reply:
        next(reply.iter_bytes())
    assert ask(client, "Leave.", response_format="pcm").headers["x-vivace-cache"] == "hit"
