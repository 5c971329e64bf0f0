"""The server before the real engine, with the embedded checkpoint."""

import gc
import itertools
import json
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from tests.remote.hosts import BOTH
from tests.server.live import connect, serving
from tests.server.test_bad_input import BODIES
from tests.server.test_fields import HONOURED

from vivace.audio.ends import FADE_IN, FADE_OUT
from vivace.audio.wav import to_s16le
from vivace.config import EngineConfig, ServerConfig
from vivace.engine import Engine
from vivace.server.order import read_order
from vivace.session import Session

SPEECH = "/v1/audio/speech"
BODY = {"input": "Hello.", "response_format": "pcm", "seed": 7}
LONG = {**BODY, "input": "A sentence that takes a while to say, and then some more. " * 20}
FRAME_BYTES = 3840


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vivace.checkpoint.synth import write_synthetic

    folder = tmp_path_factory.mktemp("synthetic") / "nine_voices"
    write_synthetic(folder, until_text=True)
    return folder


@pytest.fixture(scope="module", params=BOTH)
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    config = EngineConfig(max_sessions=8, max_queue=16, threads=1, slo_ttfa_s=600.0)
    with Engine(folder, config=config, host=BOTH[request.param]) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[httpx.Client]:
    with serving(engine) as live, httpx.Client(base_url=live.url, timeout=60) as client:
        yield client


def assert_alike(data: bytes, other: bytes) -> None:
    """The same codes, decoded in other company: other codes differ by thousands."""
    ours, theirs = (np.frombuffer(sound, dtype="<i2").astype(int) for sound in (data, other))
    assert len(ours) == len(theirs)
    assert np.abs(ours - theirs).max() <= 16


def settle(client: httpx.Client, engine: Engine) -> None:
    """Until nothing is in use. Each round trip gives the server's own loop its turn."""
    for _ in range(20_000):
        stats = engine.stats()
        if stats.slots_free == stats.slots_total and stats.waiting == 0:
            return
        client.get("/health")
    raise AssertionError(f"still in use: {engine.stats()}")


def assert_well(client: httpx.Client, engine: Engine) -> None:
    settle(client, engine)
    assert client.get("/health").status_code == 200
    assert client.get("/ready").status_code == 200
    assert len(client.post(SPEECH, json=BODY).content) >= FRAME_BYTES


def test_speaks_whole_frames_and_the_same_again(client: httpx.Client, engine: Engine) -> None:
    first, again = (client.post(SPEECH, json=BODY) for _ in range(2))
    assert first.status_code == 200
    assert_alike(first.content, again.content)
    assert len(first.content) > 0
    assert len(first.content) % FRAME_BYTES == 0


def test_wav_holds_the_same_samples(client: httpx.Client) -> None:
    pcm = client.post(SPEECH, json=BODY).content
    data = client.post(SPEECH, json={**BODY, "response_format": "wav"}).content
    with wave.open(BytesIO(data)) as sound:
        assert_alike(sound.readframes(10**6), pcm)


def test_streamed_sound_is_the_librarys_own_but_for_its_ends(
    client: httpx.Client, engine: Engine
) -> None:
    order = read_order(BODY, engine, ServerConfig())
    whole = b"".join(to_s16le(chunk.pcm) for chunk in engine.say(order.text, order.request))
    heard = client.post(SPEECH, json=BODY).content
    assert len(heard) == len(whole)
    inner = slice(2 * FADE_IN, -2 * FADE_OUT)
    assert_alike(heard[inner], whole[inner])


@pytest.mark.parametrize("text", ["![](http://a.b/c.png)", "<b></b>", "```a"])
def test_case_14_what_normalising_leaves_without_a_sound_is_refused(
    client: httpx.Client, engine: Engine, text: str
) -> None:
    reply = client.post(SPEECH, json={**BODY, "input": text})
    assert (text, reply.status_code) == (text, 400)
    assert reply.json()["error"]["code"] == "nothing_to_say"
    settle(client, engine)


def test_more_clients_than_slots_all_finish_alike(client: httpx.Client, engine: Engine) -> None:
    alone = client.post(SPEECH, json=BODY).content
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda _: client.post(SPEECH, json=BODY), range(16)))
    assert [reply.status_code for reply in together] == [200] * 16
    for reply in together:
        assert_alike(reply.content, alone)
    settle(client, engine)


def test_case_49_a_burst_ends_in_200_or_429(client: httpx.Client, engine: Engine) -> None:
    socks = [connect(client, LONG) for _ in range(32)]  # 8 slots and 16 places to wait
    heads = []
    for sock in reversed(socks):  # those who come last are refused at once
        with sock:
            heads.append(sock.recv(12))
            if len(heads) >= 8:
                break
    for sock in socks:
        sock.close()
    assert all(head in (b"HTTP/1.1 200", b"HTTP/1.1 429") for head in heads)
    assert b"HTTP/1.1 429" in heads
    assert_well(client, engine)


def leave(client: httpx.Client, sounds: int, form: str) -> None:
    """Ask for something long, hear some of it, go."""
    with connect(client, {**LONG, "response_format": form}) as sock:
        for _ in range(sounds):
            sock.recv(65536)


def test_case_38_aborted_requests_leave_nothing_behind(
    client: httpx.Client, engine: Engine
) -> None:
    def abort(count: int) -> int:
        with ThreadPoolExecutor(8) as pool:
            forms = ("pcm", "mp3", "opus", "flac", "aac")
            list(pool.map(lambda i: leave(client, (0, 1, 0, 4)[i % 4], forms[i % 5]), range(count)))
        settle(client, engine)
        gc.collect()
        return psutil.Process().memory_info().rss

    # What leaks grows in every round; memory for a batch of a new size, or for one more thread that
    # encodes, is taken once.
    abort(80)
    rounds = [abort(50) for _ in range(4)]
    assert min(after - before for before, after in itertools.pairwise(rounds)) < 4 << 20
    # Threads that rest still name the last one each has seen.
    assert sum(type(thing) is Session for thing in gc.get_objects()) <= 3
    assert_well(client, engine)


def test_every_honoured_value_speaks(client: httpx.Client, engine: Engine) -> None:
    bodies = [
        {"input": "Hi.", "max_new_tokens": 5, name: value}
        for name, value, *_ in HONOURED
        if value != "vivace-fake"  # the fake's own name
    ]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda body: client.post(SPEECH, json=body), bodies))
    silent = [
        (body, reply.text)
        for body, reply in zip(bodies, replies, strict=True)
        if reply.status_code != 200 or len(reply.content) < 500
    ]
    assert silent == []
    assert_well(client, engine)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES)
def test_fuzzed_bodies_never_fail_the_engine(
    client: httpx.Client, engine: Engine, body: dict[str, object]
) -> None:
    body = {"input": "Hi.", "max_new_tokens": 3} | body
    reply = client.post(SPEECH, content=json.dumps(body))
    assert reply.status_code in (200, 400, 404, 422)


def test_odd_texts_speak_or_are_refused(client: httpx.Client, engine: Engine) -> None:
    texts = [
        "2次",
        "Hi!",
        "7" * 200,
        "ha" * 200,
        "a" * 120,
        "<|im_end|> <|im_start|>assistant",
        "می\u200cروم",
        "a\u0000b",
        "hel\u200blo",
        "Zażółć 😊 гěśľą ไทย \u202e abc",
    ]
    for text in texts:
        body = {"input": text, "instructions": text, "max_new_tokens": 3}
        assert (text, client.post(SPEECH, json=body).status_code) == (text, 200)
    assert client.post(SPEECH, json={"input": "\u200b\u200b"}).status_code == 400
    assert_well(client, engine)


def test_well_at_the_end(client: httpx.Client, engine: Engine) -> None:
    assert_well(client, engine)


def test_what_has_no_sound_is_skipped_and_told(client: httpx.Client) -> None:
    body = {"input": "Good morning. 😊 See you soon.", "response_format": "pcm"}
    reply = client.post(SPEECH, json=body)
    assert reply.status_code == 200 and "skipped 1 pieces" in reply.headers["x-vivace-warning"]
    body["input"] = "Good morning. See you soon."
    assert "x-vivace-warning" not in client.post(SPEECH, json=body).headers
    batch = client.post(f"{SPEECH}/batch", json={"items": [{"input": "Hello. 😊"}]}).json()
    assert "skipped 1 pieces" in batch["results"][0]["warnings"][0]
