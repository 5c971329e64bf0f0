"""The vendors' sockets before the real engine, with the voice in the box."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest
from tests.server.live import serving
from tests.vendors.test_sockets import ASK, Line, done, final, sound
from websockets.asyncio.client import connect

from vivace.config import EngineConfig
from vivace.engine import Engine

pytestmark = pytest.mark.timeout(
    600
)  # the network itself: seconds alone, minutes on a busy machine

TEXT = "Good morning, and welcome. It is ten past nine."
ELEVENLABS = "/v1/text-to-speech/heart/stream-input?output_format=pcm_24000&seed=7"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(config=EngineConfig(max_sessions=4, threads=1)) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine) as live:
        yield live.url


@pytest.fixture(scope="module")
def whole(url: str) -> bytes:
    """The text in one piece, over HTTP."""
    query = {"output_format": "pcm_24000"}
    body = {"text": TEXT, "seed": 7}
    reply = httpx.post(f"{url}/v1/text-to-speech/heart", params=query, json=body, timeout=60)
    assert reply.status_code == 200
    return reply.content


@asynccontextmanager
async def line(url: str, path: str) -> AsyncIterator[Line]:
    async with connect(url.replace("http", "ws", 1) + path) as socket:
        yield Line(socket)


def assert_alike(heard: bytes, whole: bytes) -> None:
    """The same codes, decoded in other chunks: other codes differ by thousands."""
    ours, theirs = (np.frombuffer(data, "<i2").astype(int) for data in (heard, whole))
    assert len(ours) == len(theirs) > 24_000
    assert np.abs(ours - theirs).max() <= 2


async def test_letter_by_letter_is_the_same_speech(url: str, engine: Engine, whole: bytes) -> None:
    async with line(url, ELEVENLABS) as talk:
        await talk.say(text=" ", voice_settings={"stability": 0.5})
        for letter in TEXT:
            await talk.say(text=letter)
        await talk.say(text="")
        assert_alike(sound(await talk.hear_until(final)), whole)
    async with line(url, "/tts/websocket") as talk:
        ask = ASK | {"voice": "heart", "language": None, "seed": 7, "context_id": "a"}
        for letter in TEXT:
            await talk.say(transcript=letter, **ask, **{"continue": True})
        await talk.say(transcript="", **ask, **{"continue": False})
        assert_alike(sound(await talk.hear_until(done), "data"), whole)
    stats = engine.stats()
    assert (stats.slots_free, stats.waiting) == (stats.slots_total, 0)


async def test_sound_begins_before_the_text_ends(url: str) -> None:
    async with line(url, ELEVENLABS) as talk:
        await talk.say(text="Good morning, and welcome. It is ")
        assert (await talk.hear())["audio"]
        await talk.say(text="")
        await talk.hear_until(final)


async def test_a_flush_speaks_to_the_end_of_what_there_is(url: str, whole: bytes) -> None:
    """Without it the last words would wait for more text."""
    async with line(url, ELEVENLABS.replace("stream-input", "multi-stream-input")) as talk:
        await talk.say(text=TEXT, context_id="a")
        await talk.say(text="", flush=True, context_id="a")
        heard = 0
        while heard < len(whole) * 0.9:
            heard += len(sound([await talk.hear()]))
        await talk.say(context_id="a", close_context=True)
        await talk.hear_until(final)
