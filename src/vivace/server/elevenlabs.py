"""ElevenLabs' routes: whole texts over HTTP, texts as they come over two kinds of sockets."""

import base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from vivace.audio.encode import FORMATS, Format, lossy_at
from vivace.config import ServerConfig
from vivace.errors import InvalidRequest, Unprocessable, VivaceError, outcome
from vivace.roster import Offer
from vivace.server.contexts import Contexts, converse, turn
from vivace.server.fields import Fields, whole_of
from vivace.server.live.turn import Ending, Turn
from vivace.server.live.wire import Event, Patience, Wire, encode
from vivace.server.names import language_code
from vivace.server.order import Order, Output
from vivace.server.replies import error_object
from vivace.server.speaking import Speaking
from vivace.server.vendor_voices import elevenlabs_voice
from vivace.server.vendors import Edge, Wanted

if TYPE_CHECKING:
    from vivace.engine import Engine

KEY: Final = "xi-api-key"  # a request with this header is meant for these routes
DEFAULT_SOUND: Final = "mp3_44100_128"
_KBITS: Final = (32, 64, 96, 128, 192)

SOUNDS: Final[Mapping[str, tuple[Format, int]]] = MappingProxyType(
    {
        "mp3_22050_32": (lossy_at("mp3", 32), 22_050),
        "mp3_24000_48": (lossy_at("mp3", 48), 24_000),
        **{f"mp3_44100_{kbit}": (lossy_at("mp3", kbit), 44_100) for kbit in _KBITS},
        **{f"opus_48000_{kbit}": (lossy_at("opus", kbit), 48_000) for kbit in _KBITS},
        **{
            f"{name}_{rate}": (FORMATS[name], rate)
            for name in ("pcm", "wav")
            for rate in (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
        },
        "ulaw_8000": (FORMATS["mulaw"], 8_000),
        "alaw_8000": (FORMATS["alaw"], 8_000),
    }
)
# What they call our fields, where a refusal names one.
_NAMES: Final = MappingProxyType(
    {
        "input": "text",
        "voice": "voice_id",
        "language": "language_code",
        "speed": "voice_settings.speed",
        "normalize": "apply_text_normalization",
    }
)
_NORMALIZE: Final = MappingProxyType({"auto": None, "on": True, "off": False})


def elevenlabs_routes(edge: Edge) -> list[BaseRoute]:
    """All of them, but for `GET /v1/models`, which OpenAI's API has too."""
    routes = _Routes(edge)
    speech = "/v1/text-to-speech/{voice}"
    return [
        Route(speech, routes.speech, methods=["POST"]),
        Route(f"{speech}/stream", routes.speech, methods=["POST"]),
        Route(f"{speech}/with-timestamps", routes.times, methods=["POST"]),
        Route(f"{speech}/stream/with-timestamps", routes.times, methods=["POST"]),
        WebSocketRoute(f"{speech}/stream-input", Socket(edge, many=False)),
        WebSocketRoute(f"{speech}/multi-stream-input", Socket(edge, many=True)),
        Route("/v1/voices", routes.voices),
        Route("/v2/voices", routes.voices),
        Route("/v1/voices/{voice}", routes.voice),
    ]


def models(engine: "Engine", config: ServerConfig) -> Response:
    """`GET /v1/models` as ElevenLabs answers it."""
    return JSONResponse([_model(model, config) for model in engine.models])


def _model(model: Offer, config: ServerConfig) -> dict[str, object]:
    return {
        "model_id": model.model_id,
        "name": model.model_id,
        "can_do_text_to_speech": True,
        "can_do_voice_conversion": False,
        "maximum_text_length_per_request": config.limits.text_chars,
        "languages": [
            {"language_id": language_code(name), "name": name.title()} for name in model.languages
        ],
    }


class _Routes:
    """One method per route."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def speech(self, request: Request) -> Speaking:
        """A whole text in, streamed speech out, with `/stream` and without."""
        edge, voice = self._edge, request.path_params["voice"]
        output = sound_of(request.query_params.get("output_format"))

        def read(fields: Fields) -> Order:
            return edge.order(*placed(fields, voice, output))

        order = await edge.read(request, read)
        return Speaking(edge.engine, order, edge.workers, edge.config.stall_s)

    async def times(self, request: Request) -> NoReturn:
        """Speech with the times of its characters."""
        raise Unprocessable(
            "There are no times of characters here: use the route without them.",
            code="not_supported_yet",
        )

    async def voices(self, request: Request) -> Response:
        """The checkpoint's voices, in the first version's shape and the second's."""
        edge = self._edge
        voices = [
            elevenlabs_voice(voice, edge.shelf.kept_as(voice))
            for voice in [*edge.engine.voices, *edge.kept_voices]
        ]
        return JSONResponse({"voices": voices, "has_more": False, "total_count": len(voices)})

    async def voice(self, request: Request) -> Response:
        """The voice that an id stands for."""
        voice = self._edge.voice(request.path_params["voice"])
        return JSONResponse(elevenlabs_voice(voice, self._edge.shelf.kept_as(voice)))


def sound_of(name: str | None) -> Output:
    """The output that one of their format names stands for."""
    name = (name or DEFAULT_SOUND).lower()
    if name not in SOUNDS:
        raise Unprocessable(
            f"`output_format` must be one of {', '.join(SOUNDS)}; got {name[:64]!r}.",
            param="output_format",
        )
    form, rate = SOUNDS[name]
    return Output(form, rate, speed=1.0, sse=False, whole=False)


def placed(fields: Fields, voice: str, output: Output) -> tuple[Wanted, str | None]:
    """What the body of a whole text asks for, and that text."""
    text = fields.text("text")  # what is left after it is not understood
    return _wanted(fields, voice, output), text


def _wanted(fields: Fields, voice: str, output: Output) -> Wanted:
    """What a request asks for, but for its text."""
    model = fields.text("model_id")
    settings = fields.inner("voice_settings")
    normalize = fields.choice("apply_text_normalization", _NORMALIZE) or "auto"
    wishes = {
        "language": fields.text("language_code"),
        "seed": fields.take("seed"),
        "speed": settings.take("speed"),
        "normalize": _NORMALIZE[normalize],
    }
    rest = Fields(
        fields.left() | {f"voice_settings.{name}": value for name, value in settings.left().items()}
    )
    return Wanted(wishes, voice, output, rest, _NAMES, model)


class Socket:
    """`stream-input`, for one text, and `multi-stream-input`, for `many` in contexts."""

    def __init__(self, edge: Edge, *, many: bool) -> None:
        self._edge, self._many = edge, many

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        config, about = self._edge.config, WebSocket(scope, receive, send)
        wire = Wire(receive, send, Patience(config.idle_s, config.stall_s), scope)
        await converse(_Talk(self._edge, wire, about, self._many))


class _Talk:
    """One connection. Without `many` its one context is called "" and its end is the socket's.

    What is wrong with its address is told when there is text.
    """

    example, halves = '{"text": "Hello. "}', "text"

    def __init__(self, edge: Edge, wire: Wire, about: WebSocket, many: bool) -> None:
        self.edge, self.wire, self.many = edge, wire, many
        self.contexts: Contexts[_Context] = Contexts(wire)
        self._query, self._voice = about.query_params, about.path_params["voice"]

    def name(self, fields: Fields) -> str:
        """Contexts have names only where there are many."""
        return (fields.text("context_id") or "default") if self.many else ""

    async def take(self, id: str, fields: Fields) -> None:
        """Text, or an end of one kind or another."""
        text, flush = fields.text("text") or "", fields.flag("flush")
        if fields.flag("close_socket"):
            return self.contexts.leave()
        context = self.contexts.find(id)
        if fields.flag("close_context"):
            return await context.close() if context else None
        if context is None and (text or not self.many):
            context = self._begin(id, fields)
        if context is not None:
            await context.hear(text, flush=bool(flush), last=not (text or self.many))

    def _begin(self, id: str, fields: Fields) -> "_Context":
        self.contexts.check_room()
        return self.contexts.add(id, _Context(id, self, self._manner(fields)))

    def _manner(self, fields: Fields) -> Order:
        """The first message of a context says how it is spoken, and the address before it."""
        query = self._query
        said = {
            "language_code": query.get("language_code"),
            "apply_text_normalization": query.get("apply_text_normalization"),
            "seed": whole_of(query.get("seed")),
        }
        output = sound_of(query.get("output_format"))
        return self.edge.manner(_wanted(Fields(said | fields.left()), self._voice, output))

    def refuse(self, error: VivaceError, id: str | None) -> None:
        """Say what was wrong with a message, without waiting; it is the end of its context."""
        self.contexts.remove(id or "")
        self.wire.post(encode({"isFinal": True} | _broken(error) | _named(id)))
        if not self.many:
            self.wire.fail(error)


def _named(id: str | None) -> dict[str, object]:
    return {"contextId": id} if id else {}


def _broken(error: BaseException) -> dict[str, object]:
    seen = error_object(error)
    return {
        "message": seen["message"],
        "error": seen["message"],
        "code": outcome(error).close,
        "param": seen["param"],
    }


class _Context:
    """One text that comes piece by piece, and where its sound goes."""

    def __init__(self, id: str, talk: _Talk, order: Order) -> None:
        self._id, self._talk = id, talk
        self._turn = turn(talk.edge, talk.wire, 1, order, self)

    async def hear(self, text: str, *, flush: bool, last: bool) -> None:
        """More text, perhaps nothing; `last` says that it is the end."""
        if self._turn.ended:
            if text:
                raise InvalidRequest("This context takes no more text.", code="context_closed")
            return
        if text:
            await self._turn.append(text)
        if flush:
            await self._turn.flush()
        if last:
            await self._turn.end()

    async def close(self) -> None:
        """Speak what there is; closed again, as clients do that are interrupted, stop at once."""
        if not self._turn.ended:
            return await self._turn.end()
        self._talk.contexts.remove(self._id)
        self._talk.wire.post(encode({"isFinal": True} | _named(self._id)))

    async def end(self) -> None:
        """No more text comes."""
        await self._turn.end()

    def cancel(self) -> None:
        """Stop at once."""
        self._turn.cancel()

    async def sound(self, turn: Turn[int], data: bytes) -> None:
        """Send some of it. There are no times of characters, so none are made up."""
        sound = base64.b64encode(data).decode()
        message = {"audio": sound, "isFinal": None, "alignment": None, "normalizedAlignment": None}
        await self._talk.wire.send(encode(message | _named(self._id)))

    async def refused(self, turn: Turn[int], error: VivaceError) -> None:
        """Some of the text was not taken."""
        self._talk.refuse(error, self._id)

    async def over(self, turn: Turn[int], ending: Ending) -> None:
        """The end; a single context takes its socket with it."""
        wire, error = self._talk.wire, ending.error
        broken = {} if error is None else _broken(error)
        await wire.send(encode({"audio": None, "isFinal": True} | broken | _named(self._id)))
        self._talk.contexts.remove(self._id)
        if not self._talk.many:
            wire.finish(Event.SAID_ALL) if error is None else wire.fail(error)
