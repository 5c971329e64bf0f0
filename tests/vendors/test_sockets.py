"""ElevenLabs' and Cartesia's sockets: contexts, flush, close, cancel, errors."""

import asyncio
import base64
import json
import queue
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes import FakeEngine, FakeSession, Play
from tests.server.live import serving
from tests.vendors.conftest import Places
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from vivace.errors import Overloaded, VivaceError
from vivace.server.contexts import MOST_CONTEXTS

FRAME = 3840  # bytes of a chunk
MULTI = "/v1/text-to-speech/ryan/multi-stream-input?output_format=pcm_24000"
Message = dict[str, Any]


class Line:
    """One connection, in JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, **message: object) -> None:
        await self.socket.send(json.dumps(message))

    async def hear(self) -> Message:
        message: Message = json.loads(await asyncio.wait_for(self.socket.recv(), 100))
        return message

    async def hear_until(self, last: Callable[[Message], object]) -> list[Message]:
        messages = [await self.hear()]
        while not last(messages[-1]):
            messages.append(await self.hear())
        return messages

    async def closed(self) -> int:
        """The close code; nothing may come before it."""
        with pytest.raises(ConnectionClosed):
            await self.hear()
        assert self.socket.close_code is not None
        return self.socket.close_code


@asynccontextmanager
async def line(places: Places, path: str) -> AsyncIterator[Line]:
    async with connect(places.ws + path) as socket:
        yield Line(socket)


def single(places: Places, query: str = "output_format=pcm_24000") -> Any:
    return line(places, f"/v1/text-to-speech/ryan/stream-input?{query}")


def multi(places: Places, query: str = "output_format=pcm_24000") -> Any:
    return line(places, f"{MULTI.split('?', maxsplit=1)[0]}?{query}")


def cartesia(places: Places) -> Any:
    return line(places, "/tts/websocket?cartesia_version=2025-04-16")


def final(message: Message) -> object:
    return message.get("isFinal")


def done(message: Message) -> object:
    return message["done"]


def sound(messages: list[Message], field: str = "audio") -> bytes:
    return b"".join(base64.b64decode(m[field]) for m in messages if m.get(field))


async def session_of(engine: FakeEngine) -> FakeSession:
    return await asyncio.to_thread(engine.next_session)


def none_open(engine: FakeEngine) -> None:
    with pytest.raises(queue.Empty):
        engine.sessions.get(block=False)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(100):
        while not true():
            await asyncio.sleep(0.005)


async def test_a_text_is_spoken_while_it_comes(places: Places, engine: FakeEngine) -> None:
    settings = {"speed": 1.0, "stability": 0.3}
    async with single(places, "output_format=pcm_24000&language_code=en&seed=7") as talk:
        await talk.say(text=" ", voice_settings=settings, generation_config={})
        await talk.say(text="Hello ", try_trigger_generation=True)
        first = await talk.hear()  # before the text has ended
        assert first["audio"] and first["alignment"] is None
        await talk.say(text="there. ", flush=True)
        await talk.say(text="")
        *rest, last = await talk.hear_until(final)
        assert len(sound([first, *rest])) == 3 * FRAME
        assert last["isFinal"] is True and last["audio"] is None
        assert await talk.closed() == 1000
    session = await session_of(engine)
    assert session.text == " Hello there. "
    assert (session.request.language, session.request.sampling.seed) == ("english", 7)
    assert session.flushes == 1


async def test_nothing_to_say_is_an_end(places: Places, engine: FakeEngine) -> None:
    async with single(places) as talk:
        await talk.say(text=" ")
        await talk.say(text="")
        assert (await talk.hear())["isFinal"] is True
        assert await talk.closed() == 1000


async def test_half_a_character_waits_for_its_other_half(
    places: Places, engine: FakeEngine
) -> None:
    async with single(places) as talk:
        await talk.socket.send('{"text": "A \\ud83d"}')
        await talk.socket.send('{"text": "\\ude00 B."}')
        await talk.say(text="")
        await talk.hear_until(final)
    session = await session_of(engine)
    assert session.text.encode("utf-16", "surrogatepass").decode("utf-16") == "A \U0001f600 B."


@pytest.mark.parametrize(
    ("query", "text", "param"),
    [
        ("output_format=pcm_1", "Hello. ", "output_format"),
        ("language_code=xx", "Hello. ", "language_code"),
        ("seed=many", "Hello. ", "seed"),
        ("seed=" + 5_000 * "9", "Hello. ", "seed"),
        ("seed=%D9%A7", "Hello. ", "seed"),  # an Arabic seven
        ("seed=-1", "Hello. ", "seed"),
        ("", 7, "text"),
    ],
)
async def test_a_bad_request_closes_a_single_socket(
    places: Places, engine: FakeEngine, query: str, text: object, param: str
) -> None:
    async with single(places, query) as talk:
        await talk.say(text=text)
        error = await talk.hear()
        assert error["param"] in (param, "language") and error["message"] == error["error"]
        assert error["code"] == 1008
        assert await talk.closed() == 1008
    none_open(engine)


async def test_what_is_no_message(places: Places, engine: FakeEngine) -> None:
    """Answered, and the socket of many contexts stays."""
    async with multi(places) as talk:
        for raw in ("{", "[]", '{"text": 1, "context_id": "a"}', b"\xff", '{"flush": "yes"}'):
            await talk.socket.send(raw)
            assert (await talk.hear())["code"] == 1008
        await talk.say(text="Hello. ", context_id="a")
        await talk.say(context_id="a", close_context=True)
        assert len(sound(await talk.hear_until(final))) == 3 * FRAME


async def test_an_engine_that_is_full(places: Places, engine: FakeEngine) -> None:
    engine.play = Play(refusal=Overloaded("full", retry_after_s=1))
    async with multi(places) as talk:
        await talk.say(text="Hello. ", context_id="a")
        error = await talk.hear()
        assert (error["contextId"], error["isFinal"], error["code"]) == ("a", True, 1013)
    async with single(places) as talk:
        await talk.say(text="Hello. ")
        assert (await talk.hear())["error"] == "full"
        assert await talk.closed() == 1013


async def test_contexts_side_by_side(places: Places, engine: FakeEngine) -> None:
    engine.play = Play(chunks=3, open_gates=1)
    async with multi(places) as talk:
        for id in ("a", "b"):
            await talk.say(text=" ", context_id=id, voice_settings={})
            await talk.say(text=f"{id} speaks. ", context_id=id)
        first = [await talk.hear(), await talk.hear()]
        assert {message["contextId"] for message in first} == {"a", "b"}
        a, b = sorted([await session_of(engine), await session_of(engine)], key=lambda s: s.text)
        for id in ("a", "b"):
            await talk.say(text="", flush=True, context_id=id)
            await talk.say(context_id=id, close_context=True)
        b.allow(2)
        rest = await talk.hear_until(final)
        assert {message["contextId"] for message in rest} == {"b"}
        a.allow(2)
        rest = await talk.hear_until(final)
        assert {message["contextId"] for message in rest} == {"a"}
        await talk.say(text="Once more. ", context_id="a")  # the name is free again
        await talk.say(close_socket=True)
        engine.next_session().allow(2)
        assert len(sound(await talk.hear_until(final))) == 3 * FRAME
        assert await talk.closed() == 1000


async def test_keepalives_begin_and_end_nothing(places: Places, engine: FakeEngine) -> None:
    async with multi(places) as talk:
        await talk.say(text="")
        await talk.say(text="", context_id="a")
        await talk.say(context_id="a", close_context=True)  # not open: nothing to close
        await talk.say(text="Hello. ", context_id="a")
        assert (await talk.hear())["contextId"] == "a"
        await talk.say(text="", context_id="a")
        assert not (await session_of(engine)).ended
        none_open(engine)


async def test_closed_twice_is_interrupted(places: Places, engine: FakeEngine) -> None:
    engine.play = Play(chunks=3, open_gates=1)
    async with multi(places) as talk:
        await talk.say(text="A long answer. ", context_id="a")
        assert (await talk.hear())["audio"]
        session = await session_of(engine)
        await talk.say(context_id="a", close_context=True)
        await until(lambda: session.ended)
        assert not session.cancelled.is_set()
        await talk.say(context_id="a", close_context=True)
        assert final(await talk.hear())
        await until(session.cancelled.is_set)
        session.allow(2)
        await talk.say(text="Next. ", context_id="b")
        assert (await talk.hear())["contextId"] == "b"


@pytest.mark.parametrize("open_line", [single, multi, cartesia])
async def test_who_leaves_is_no_longer_spoken_to(
    places: Places, engine: FakeEngine, open_line: Any
) -> None:
    engine.play = Play(chunks=9, open_gates=1)
    async with open_line(places) as talk:
        await talk.say(
            text="Hello. ", transcript="Hello. ", context_id="a", **{"continue": True}, **RAW
        )
        await talk.hear()
    await until((await session_of(engine)).cancelled.is_set)


async def test_contexts_of_a_socket_are_bounded(places: Places, engine: FakeEngine) -> None:
    async with multi(places) as talk:
        for number in range(MOST_CONTEXTS):
            await talk.say(text=" ", context_id=str(number))
        await talk.say(text=" ", context_id="more")
        error = await talk.hear()
        assert error["contextId"] == "more" and str(MOST_CONTEXTS) in error["error"]


async def test_an_error_is_the_end_of_its_context(places: Places, engine: FakeEngine) -> None:
    engine.play = Play(chunks=3, open_gates=1)
    async with multi(places) as talk:
        for id in ("a", "b"):
            await talk.say(text="Hello. ", context_id=id)
            assert (await talk.hear())["contextId"] == id
        a, b = await session_of(engine), await session_of(engine)
        await talk.socket.send("no JSON")
        assert "contextId" not in await talk.hear()
        await talk.say(context_id="a", close_context=True)
        await talk.say(text="Too late. ", context_id="a")
        refusal = await talk.hear()
        assert (refusal["contextId"], refusal["isFinal"]) == ("a", True)
        await until(a.cancelled.is_set)
        assert not b.cancelled.is_set()
        b.allow(2)
        await talk.say(context_id="b", close_context=True)
        assert {m["contextId"] for m in await talk.hear_until(final)} == {"b"}


RAW = {"output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}}
ASK = {"model_id": "sonic-3", "voice": {"mode": "id", "id": "ryan"}, "language": "en", **RAW}


async def ask(talk: Line, text: str, more: bool, **fields: object) -> None:
    await talk.say(transcript=text, **({"continue": more, "context_id": "a"} | ASK | fields))


async def test_cartesia_speaks_while_it_comes(places: Places, engine: FakeEngine) -> None:
    async with cartesia(places) as talk:
        await ask(talk, "Hello ", True, add_timestamps=True, max_buffer_delay_ms=0)
        first = await talk.hear()
        assert (first["type"], first["done"], first["status_code"]) == ("chunk", False, 206)
        await ask(talk, "there.", True)
        await ask(talk, "", False)
        *rest, last = await talk.hear_until(done)
        assert len(sound([first, *rest], "data")) == 3 * FRAME
        assert (last["type"], last["context_id"], last["status_code"]) == ("done", "a", 200)
        assert {message["type"] for message in rest} <= {"chunk"}
    assert (await session_of(engine)).text == "Hello there."


async def test_each_flush_is_told_when_it_is_spoken(places: Places, engine: FakeEngine) -> None:
    async with cartesia(places) as talk:
        await ask(talk, "One. ", True, flush=True)
        await ask(talk, "Two. ", True, flush=True)
        await ask(talk, "Three.", False)
        messages = await talk.hear_until(done)
    marks = [m for m in messages if m["type"] != "chunk"]
    assert [m.get("flush_id") for m in marks] == [1, 2, None]
    parts = [messages.index(mark) for mark in marks]
    assert [
        len(sound(messages[a:b], "data")) for a, b in zip([0, *parts], parts, strict=False)
    ] == [3 * FRAME] * 3
    assert [(await session_of(engine)).text for _ in range(3)] == ["One. ", "Two. ", "Three."]


async def test_cancel_stops_one_context_only(places: Places, engine: FakeEngine) -> None:
    engine.play = Play(chunks=9, open_gates=1)
    async with cartesia(places) as talk:
        await ask(talk, "A. ", True, flush=True)
        await ask(talk, "Waits. ", True)
        await talk.hear()
        a = await session_of(engine)
        await ask(talk, "B.", False, context_id="b")
        first = await talk.hear()
        assert first["context_id"] == "b"
        b = await session_of(engine)
        await talk.say(context_id="a", cancel=True)
        assert (await talk.hear()) == {
            "type": "done",
            "done": True,
            "status_code": 200,
            "context_id": "a",
        }
        await until(a.cancelled.is_set)
        a.allow(8)
        b.allow(8)
        rest = await talk.hear_until(done)
        assert {message["context_id"] for message in rest} == {"b"}
        assert len(sound([first, *rest], "data")) == 9 * FRAME
        await talk.say(context_id="a", cancel=True)  # over: nothing to stop
        await ask(talk, "Anew.", False)
        engine.next_session().allow(8)
        assert (await talk.hear_until(done))[-1]["context_id"] == "a"
    none_open(engine)  # what waited behind the flush never began


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"voice": "nobody"}, 404),
        ({"language": "xx"}, 422),
        ({"transcript": 3}, 422),
        ({"output_format": {"container": "raw", "encoding": "x"}}, 422),
        ({"continue": "yes"}, 422),
    ],
)
async def test_cartesia_refuses_a_context_and_keeps_the_socket(
    places: Places, engine: FakeEngine, fields: Message, status: int
) -> None:
    async with cartesia(places) as talk:
        await talk.say(**({"transcript": "Hello.", "context_id": "a"} | ASK | fields))
        error = await talk.hear()
        assert (error["type"], error["context_id"]) == ("error", "a")
        assert (error["status_code"], error["done"]) == (status, True)
        none_open(engine)
        await ask(talk, "Hello.", False)
        assert (await talk.hear_until(done))[-1]["type"] == "done"


async def test_a_context_that_breaks_off(places: Places, engine: FakeEngine) -> None:
    engine.play = Play(fault_at=1, open_gates=1, fault=VivaceError("the card is gone"))
    async with cartesia(places) as talk:
        await ask(talk, "One. ", True, flush=True)
        assert (await talk.hear())["type"] == "chunk"
        await ask(talk, "Two.", False)
        await talk.socket.send("no JSON")
        assert (await talk.hear())["context_id"] is None  # by now it has heard the second text
        (await session_of(engine)).allow(1)
        *_, last = await talk.hear_until(done)
        assert (last["type"], last["status_code"]) == ("error", 500)
        engine.play = Play()
        await ask(talk, "Anew.", False, context_id="b")
        assert (await talk.hear_until(done))[-1]["context_id"] == "b"


@pytest.mark.parametrize("vendor", ["elevenlabs", "cartesia"])
async def test_a_server_that_goes_down_lets_contexts_end(vendor: str) -> None:
    engine = FakeEngine()
    engine.play = Play(chunks=3, open_gates=1)
    paths = {"cartesia": "/tts/websocket", "elevenlabs": MULTI}
    with serving(engine) as live:
        async with connect(live.url.replace("http", "ws", 1) + paths[vendor]) as socket:
            talk, field = Line(socket), "data" if vendor == "cartesia" else "audio"
            await talk.say(text="Hello. ", **({"transcript": "Hello. ", "continue": True} | ASK))
            first = await talk.hear()
            live.server.should_exit = True
            session = await session_of(engine)
            await until(lambda: session.ended)
            session.allow(2)
            rest = await talk.hear_until(lambda m: m.get("done") or m.get("isFinal"))
            assert len(sound([first, *rest], field)) == 3 * FRAME
            assert await talk.closed() == 1012
