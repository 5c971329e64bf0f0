"""Cartesia's routes: whole texts over HTTP and as events, texts as they come over a socket."""

import base64
import time
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from vivace.audio.encode import ANY_RATE, PACKINGS, Format, bare, in_wav, lossy_at
from vivace.errors import InvalidRequest, Unprocessable, VivaceError, outcome
from vivace.server.contexts import Contexts, converse, turn
from vivace.server.fields import Fields
from vivace.server.live.turn import Ending, Turn
from vivace.server.live.wire import Patience, Wire, encode
from vivace.server.order import Order, Output
from vivace.server.replies import as_json, error_object
from vivace.server.speaking import Speaking
from vivace.server.vendor_voices import cartesia_voice
from vivace.server.vendors import Edge, Wanted
from vivace.types import Done

_SPEEDS: Final = MappingProxyType({"slow": 0.8, "normal": 1.0, "fast": 1.25})
_CONTAINERS: Final = ("raw", "wav", "mp3")
_MOST_FLUSHES: Final = 64  # of one context, not spoken yet
_KBITS: Final = (32, 64, 96, 128, 192)
# What they call our fields, where a refusal names one.
_NAMES: Final = MappingProxyType(
    {
        "input": "transcript",
        "speed": "generation_config.speed",
        "normalize": "normalization",
        "instructions": "generation_config.emotion",
    }
)


def cartesia_routes(edge: Edge) -> list[BaseRoute]:
    """All of them."""
    routes = _Routes(edge)
    return [
        Route("/tts/bytes", routes.speech, methods=["POST"]),
        Route("/tts/sse", routes.events, methods=["POST"]),
        WebSocketRoute("/tts/websocket", Socket(edge)),
        Route("/voices", routes.voices),
        Route("/voices/{voice}", routes.voice),
    ]


class _Routes:
    """One method per route."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def speech(self, request: Request) -> Speaking:
        """A whole text in, the bytes of its speech out while it is made."""
        return await self._edge.read(request, self._speech)

    async def events(self, request: Request) -> Speaking:
        """The same as events."""
        return await self._edge.read(request, self._events)

    def _speech(self, fields: Fields) -> Speaking:
        edge = self._edge
        order = edge.order(*placed(fields))
        return Speaking(edge.engine, order, edge.workers, edge.config.stall_s)

    def _events(self, fields: Fields) -> Speaking:
        edge, events = self._edge, Events(fields)
        order = edge.order(*placed(fields, sse=True))
        return Speaking(edge.engine, order, edge.workers, edge.config.stall_s, events)

    async def voices(self, request: Request) -> Response:
        """The checkpoint's voices; after one of them, where the client asks for the next page."""
        edge = self._edge
        voices = [*edge.engine.voices, *edge.kept_voices]
        after = request.query_params.get("starting_after")
        ids = [voice.id for voice in voices]
        start = ids.index(after) + 1 if after in ids else 0
        shown = [cartesia_voice(v, edge.shelf.kept_as(v)) for v in voices[start:]]
        return JSONResponse({"data": shown, "has_more": False})

    async def voice(self, request: Request) -> Response:
        """The voice that an id stands for."""
        voice = self._edge.voice(request.path_params["voice"])
        return JSONResponse(cartesia_voice(voice, self._edge.shelf.kept_as(voice)))


class Events:
    """Cartesia's server-sent events."""

    def __init__(self, fields: Fields) -> None:
        context_id = fields.text("context_id")
        self._context = {} if context_id is None else {"context_id": context_id}
        self._then_s = time.perf_counter()

    def delta(self, sound: bytes) -> bytes:
        """Some bytes of the sound; no event if there are none."""
        if not sound:
            return b""
        now_s = time.perf_counter()
        step_ms, self._then_s = (now_s - self._then_s) * 1e3, now_s
        return _event(chunk(sound, step_ms) | self._context)

    def end(self, done: Done) -> bytes:
        """The end of speech that went well."""
        return _event(finished() | {"finish_reason": done.reason} | self._context)

    def fault(self, error: BaseException) -> bytes:
        """The end of speech that broke off."""
        return _event(broken(error) | self._context)


def _event(message: Mapping[str, object]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(message["type"]).encode(), as_json(message))


def chunk(sound: bytes, step_ms: float) -> dict[str, object]:
    """Some of the sound; `step_ms` since the one before."""
    data = base64.b64encode(sound).decode()
    return {"type": "chunk", "data": data, "done": False, "status_code": 206, "step_time": step_ms}


def flushed(number: int | str) -> dict[str, object]:
    """All that came before a flush is spoken."""
    return {
        "type": "flush_done",
        "flush_done": True,
        "flush_id": number,
        "done": False,
        "status_code": 206,
    }


def finished() -> dict[str, object]:
    """The end of a context."""
    return {"type": "done", "done": True, "status_code": 200}


def broken(error: BaseException) -> dict[str, object]:
    """The end of a context that broke off."""
    seen = error_object(error)
    return {
        "type": "error",
        "done": True,
        "status_code": outcome(error).status,
        "error_code": seen["code"] or seen["type"],
        "title": seen["type"],
        "message": seen["message"],
        "error": seen["message"],
    }


def placed(fields: Fields, *, sse: bool = False) -> tuple[Wanted, str | None]:
    """What the body of a whole text asks for, and that text."""
    text = fields.text("transcript")
    return wanted(fields, sse=sse), text


def wanted(fields: Fields, *, sse: bool = False) -> Wanted:
    """What a request asks for, but for its text.

    Raises Unprocessable for a field that is not as it should be.
    """
    model, tuning = fields.text("model_id"), fields.inner("generation_config")
    emotion = tuning.text("emotion")
    wishes = {
        "language": fields.either("language", "locale", fields.text),
        "normalize": False if fields.text("normalization") == "off" else None,
        "speed": _speed(fields, tuning),
        "instructions": emotion and f"In a tone that is {emotion}.",
    }
    voice, output = _voice_id(fields), _sound(fields.inner("output_format"), sse=sse)
    rest = Fields(
        fields.left()
        | {f"generation_config.{name}": value for name, value in tuning.left().items()}
    )
    return Wanted(wishes, voice, output, rest, _NAMES, model)


def _speed(fields: Fields, tuning: Fields) -> object:
    """A number, or one of three words in the older field."""
    word = fields.choice("speed", _SPEEDS)
    number = tuning.take("speed")
    return _SPEEDS[word] if number is None and word is not None else number


def _voice_id(fields: Fields) -> str | None:
    """A name, or an object that holds it; a voice given as numbers is refused."""
    value = fields.take("voice")
    if isinstance(value, dict) and value.get("mode", "id") == "id":
        value = value.get("id")
    if value is None or isinstance(value, str):
        return value
    raise Unprocessable('`voice` must be a name or {"mode": "id", "id": name}.', param="voice")


def _sound(fields: Fields, *, sse: bool) -> Output:
    container = fields.choice("container", _CONTAINERS) or "raw"
    rate = fields.whole("sample_rate", ANY_RATE[0], ANY_RATE[-1]) or 44_100
    return Output(_format(fields, container), rate, speed=1.0, sse=sse, whole=False)


def _format(fields: Fields, container: str) -> Format:
    if container == "mp3":
        bits = fields.whole("bit_rate", 1) or 128_000
        if bits // 1000 not in _KBITS:
            raise Unprocessable(
                f"`bit_rate` must be one of {', '.join(f'{k}000' for k in _KBITS)}; got {bits}.",
                param="output_format",
            )
        return lossy_at("mp3", bits // 1000)
    packing = fields.choice("encoding", PACKINGS) or "pcm_s16le"
    return bare(packing) if container == "raw" else in_wav(packing)


class Socket:
    """`/tts/websocket`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        config = self._edge.config
        wire = Wire(receive, send, Patience(config.idle_s, config.stall_s), scope)
        await converse(_Talk(self._edge, wire))


class _Talk:
    """One connection."""

    example = '{"context_id": "1", "transcript": "Hello. ", "continue": false}'
    halves = "transcript"

    def __init__(self, edge: Edge, wire: Wire) -> None:
        self.edge, self.wire = edge, wire
        self.contexts: Contexts[_Context] = Contexts(wire)

    def name(self, fields: Fields) -> str:
        """A text without a name is one of its own."""
        return fields.text("context_id") or uuid.uuid4().hex

    async def take(self, id: str, fields: Fields) -> None:
        """Text, or the end of a context."""
        context = self.contexts.find(id)
        if fields.flag("cancel"):
            return context.stop() if context else None
        text, more = fields.text("transcript") or "", fields.flag("continue")
        flush = fields.flag("flush")
        if context is None:
            self.contexts.check_room()
            order = self.edge.manner(wanted(fields))
            context = self.contexts.add(id, _Context(id, self, order))
        await context.hear(text)
        if not more:
            await context.end()
        elif flush:
            await context.flush()

    def refuse(self, error: BaseException, id: str | None) -> None:
        """Say what was wrong with a message, without waiting; it is the end of its context."""
        self.contexts.remove(id or "")
        self.wire.post(encode(broken(error) | {"context_id": id}))


class _Context:
    """One text that comes piece by piece; each flush ends a turn, and the next one follows it."""

    def __init__(self, id: str, talk: _Talk, order: Order) -> None:
        self._id, self._talk, self._order = id, talk, order
        self._turns = [turn(talk.edge, talk.wire, 1, order, self)]  # those that are not over
        self._then_s = time.perf_counter()

    async def hear(self, text: str) -> None:
        """More text, perhaps nothing."""
        if self._turns[-1].ended:
            raise InvalidRequest("This context takes no more text.", code="context_closed")
        if text:
            await self._turns[-1].append(text)

    async def flush(self) -> None:
        """Speak what there is without waiting for more."""
        last = self._turns[-1]
        if len(self._turns) >= _MOST_FLUSHES:
            raise Unprocessable(
                f"{_MOST_FLUSHES} flushes of this context are not spoken yet.", param="flush"
            )
        self._turns.append(self._next(last))
        await last.end()

    def _next(self, last: Turn[int]) -> Turn[int]:
        talk, number = self._talk, int(last.id) + 1
        return turn(talk.edge, talk.wire, number, self._order, self, last)

    async def end(self) -> None:
        """No more text comes."""
        await self._turns[-1].end()

    def cancel(self) -> None:
        """Stop at once, the last first: none of them begins because another is over."""
        for one in reversed(self._turns):
            one.cancel()

    def stop(self) -> None:
        """The same at the client's wish, who hears that it is done."""
        self._talk.contexts.remove(self._id)
        self._talk.wire.post(encode(finished() | {"context_id": self._id}))

    async def sound(self, turn: Turn[int], data: bytes) -> None:
        """Send some of it."""
        now_s = time.perf_counter()
        message = chunk(data, (now_s - self._then_s) * 1e3)
        self._then_s = now_s
        await self._say(message)

    async def refused(self, turn: Turn[int], error: VivaceError) -> None:
        """Some of the text was not taken."""
        self._talk.refuse(error, self._id)

    async def over(self, turn: Turn[int], ending: Ending) -> None:
        """The end of one turn; the last one's, or a bad one, is that of the context."""
        if ending.error is None and turn is not self._turns[-1]:
            await self._say(flushed(turn.id))
            self._turns.remove(turn)
            return
        await self._say(finished() if ending.error is None else broken(ending.error))
        self._talk.contexts.remove(self._id)

    async def _say(self, message: dict[str, object]) -> None:
        await self._talk.wire.send(encode(message | {"context_id": self._id}))
