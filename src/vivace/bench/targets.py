"""What each server is asked: one table of HTTP bodies, one function for each kind of socket.

The facts come from the servers' own documentation and source; docs/benchmark.md says which.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from vivace.errors import InvalidRequest

RATE = 24_000
Fields = dict[str, object]

_STREAM: Fields = {"response_format": "pcm", "stream": True, "non_streaming_mode": False}
_SPEECH: dict[str, Fields] = {
    "vivace": {"response_format": "pcm"},
    "openai": {"model": "gpt-4o-mini-tts", "voice": "alloy", "response_format": "pcm"},
    "vllm-omni": {**_STREAM, "stream_format": "audio"},
    "sglang-omni": _STREAM,
    "voxserve": _STREAM,
    "mstar": {**_STREAM, "response_format": "wav"},  # it streams nothing else
    "nari": _STREAM,
}
NAMES = (*_SPEECH, "nari-ws", "elevenlabs", "cartesia")


@dataclass(frozen=True, slots=True)
class Ask:
    """What is the same for every request of a run."""

    target: str
    url: str  # the client's base URL
    model: str | None = None
    voice: str | None = None
    language: str | None = None
    fields: Fields = field(default_factory=dict)  # more of the body, as the user says
    key: str = ""  # never written to a result
    paced: bool = False  # words as they come, which needs a socket

    @property
    def parts(self) -> SplitResult:
        """The URL in its parts."""
        return urlsplit(self.url)

    @property
    def socket(self) -> bool:
        """Whether it goes over a WebSocket: nari-ws always, others by ws:// or by their pace."""
        return self.target == "nari-ws" or self.parts.scheme in {"ws", "wss"} or self.paced

    @property
    def tls(self) -> bool:
        """Whether the URL asks for it."""
        return self.parts.scheme in {"https", "wss"}

    @property
    def port(self) -> int:
        """The URL's port, or that of its scheme."""
        return self.parts.port or (443 if self.tls else 80)

    @property
    def base(self) -> str:
        """The URL's path, to put a route behind."""
        return self.parts.path.rstrip("/")

    def check(self) -> None:
        """Raises InvalidRequest for what no adapter can do."""
        if self.target not in NAMES:
            raise InvalidRequest(f"no target {self.target!r}; there are {', '.join(NAMES)}")
        try:
            good = self.parts.scheme in {"http", "https", "ws", "wss"} and self.port
        except ValueError:
            good = False
        if not (good and self.parts.hostname and re.fullmatch(r"[!-?A-~]+", self.url)):
            raise InvalidRequest(
                f"{self.url!r} is no http://, https://, ws:// or wss:// URL (in ASCII, without a "
                "name and a password)"
            )
        if not re.fullmatch(r"[!-~]*", self.key):
            raise InvalidRequest("the key has a character that no header can carry")
        if self.socket and self.target not in _SOCKETS:
            raise InvalidRequest(
                f"{self.target} takes whole texts over HTTP; words at a pace need one of "
                f"{', '.join(_SOCKETS)}"
            )

    def chosen(self) -> Fields:
        """Model, voice and language, where they were given."""
        values = {"model": self.model, "voice": self.voice, "language": self.language}
        return {name: value for name, value in values.items() if value}


def http_request(ask: Ask, text: str) -> bytes:
    """One whole request: head and body, ready to be sent at once."""
    path, headers, fields = _http(ask, text)
    body = json.dumps({**fields, **ask.fields}, ensure_ascii=False).encode()
    head = {
        "host": ask.parts.netloc,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "user-agent": "vivace-bench",
        **headers,
    }
    lines = (f"{name}: {value}\r\n" for name, value in head.items())
    return f"POST {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1") + body


def _http(ask: Ask, text: str) -> tuple[str, Mapping[str, str], Fields]:
    base = ask.base
    if ask.target == "elevenlabs":
        path = f"{base}/v1/text-to-speech/{quote(ask.voice or _ELEVEN_VOICE, safe='')}/stream"
        named = {"language_code": ask.language} if ask.language else {}
        fields: Fields = {"text": text, "model_id": ask.model or _ELEVEN_MODEL, **named}
        return f"{path}?output_format=pcm_{RATE}", _eleven_key(ask), fields
    if ask.target == "cartesia":
        return f"{base}/tts/bytes", _cartesia_head(ask), _cartesia_body(ask, text)
    if ask.target != "openai" and not base.endswith("/v1"):
        base += "/v1"
    key = {"authorization": f"Bearer {ask.key}"} if ask.key else {}
    return f"{base}/audio/speech", key, {**_SPEECH[ask.target], "input": text, **ask.chosen()}


@dataclass(frozen=True, slots=True)
class Heard:
    """What one message of a socket says."""

    sound: bytes = b""
    done: bool = False
    finish: str | None = None
    error: str = ""
    ready: bool = False  # for the text


@dataclass(frozen=True, slots=True)
class Talk:
    """How one utterance goes over one kind of socket."""

    path: str
    headers: dict[str, str]
    texts: Callable[[list[str]], Iterator[Fields]]  # a message for each word, and what ends them
    hear: Callable[[Fields | bytes], Heard]
    subprotocol: str | None = None
    greeting: Fields | None = None  # sent before the text, and not timed
    awaits: bool = False  # whether the text waits for a message that says `ready`
    closes_when_done: bool = False  # a normal close without a last message is an end too


def _vivace(ask: Ask, index: int) -> Talk:
    """Our own socket: text as it comes, samples behind four bytes that number the turn."""

    def texts(words: list[str]) -> Iterator[Fields]:
        for word in words:
            yield {"type": "input_text.append", "text": word}
        yield {"type": "input_text.end"}

    def hear(message: Fields | bytes) -> Heard:
        if isinstance(message, bytes):
            return Heard(sound=message[4:])
        kind = message.get("type")
        if kind == "error" or "error" in message:
            return Heard(error=_error(message))
        finish = str(message.get("finish_reason"))
        return Heard(
            ready=kind == "session.updated", done=kind == "speech.audio.done", finish=finish
        )

    return Talk(
        f"{ask.base.removesuffix('/v1')}/v1/audio/speech/stream",
        {"authorization": f"Bearer {ask.key}"} if ask.key else {},
        texts,
        hear,
        greeting={"type": "session.update", "format": "pcm", **ask.chosen(), **ask.fields},
        awaits=True,
    )


def _nari(ask: Ask, index: int) -> Talk:
    """`nari.speech.v1`: numbered appends, bare samples back."""

    def texts(words: list[str]) -> Iterator[Fields]:
        for i, word in enumerate(words):
            yield {"type": "input_text.append", "sequence": i, "text": word}
        yield {"type": "input_text.end", "sequence": len(words)}

    def hear(message: Fields | bytes) -> Heard:
        if isinstance(message, bytes):
            return Heard(sound=message)
        kind = message.get("type")
        if kind == "response.done":
            return Heard(done=True, finish=str(message.get("stop_reason")))
        error = _error(message) if kind == "error" else ""
        return Heard(ready=kind == "request.configured", error=error)

    return Talk(
        f"{ask.base.removesuffix('/v1')}/v1/audio/speech/ws",
        {"authorization": f"Bearer {ask.key}"} if ask.key else {},
        texts,
        hear,
        subprotocol="nari.speech.v1",
        greeting={"type": "request.start", "response_format": "pcm", **ask.chosen(), **ask.fields},
        awaits=True,
    )


def _elevenlabs(ask: Ask, index: int) -> Talk:
    """`stream-input`: base64 in JSON. Each text ends with a space, and an empty one is the end."""

    def texts(words: list[str]) -> Iterator[Fields]:
        for word in words:
            yield {"text": word.rstrip(" ") + " "}
        yield {"text": ""}

    def hear(message: Fields | bytes) -> Heard:
        if isinstance(message, bytes) or "error" in message:
            return Heard(error=_error(message))
        return Heard(sound=_base64(message.get("audio")), done=bool(message.get("isFinal")))

    query = {"model_id": ask.model or _ELEVEN_MODEL, "output_format": f"pcm_{RATE}"}
    query |= {"language_code": ask.language} if ask.language else {}
    voice = quote(ask.voice or _ELEVEN_VOICE, safe="")
    return Talk(
        f"{ask.base}/v1/text-to-speech/{voice}/stream-input?{urlencode(query)}",
        _eleven_key(ask),
        texts,
        hear,
        greeting={"text": " ", **ask.fields},
        closes_when_done=True,
    )


def _cartesia(ask: Ask, index: int) -> Talk:
    """`/tts/websocket` with one context on it: base64 in JSON."""

    def texts(words: list[str]) -> Iterator[Fields]:
        for i, word in enumerate(words, 1):
            same = {"context_id": f"bench-{index}", "continue": i < len(words)}
            yield {**_cartesia_body(ask, word), **ask.fields, **same}

    def hear(message: Fields | bytes) -> Heard:
        if isinstance(message, bytes) or message.get("type") == "error":
            return Heard(error=_error(message))
        sound = _base64(message.get("data")) if message.get("type") == "chunk" else b""
        return Heard(sound=sound, done=message.get("type") == "done")

    path = f"/tts/websocket?cartesia_version={_CARTESIA_VERSION}"
    return Talk(ask.base + path, _cartesia_head(ask), texts, hear)


_SOCKETS = {
    "vivace": _vivace,
    "nari-ws": _nari,
    "elevenlabs": _elevenlabs,
    "cartesia": _cartesia,
}


def socket_talk(ask: Ask, index: int) -> Talk:
    """The conversation of request `index`."""
    return _SOCKETS[ask.target](ask, index)


_ELEVEN_VOICE, _ELEVEN_MODEL = "21m00Tcm4TlvDq8ikWAM", "eleven_flash_v2_5"
_CARTESIA_VERSION, _CARTESIA_MODEL = "2026-03-01", "sonic-3.5"
_CARTESIA_VOICE = "a0e99841-438c-4a64-b679-ae501e7d6091"


def _eleven_key(ask: Ask) -> dict[str, str]:
    return {"xi-api-key": ask.key} if ask.key else {}


def _cartesia_head(ask: Ask) -> dict[str, str]:
    key = {"x-api-key": ask.key} if ask.key else {}
    return {"cartesia-version": _CARTESIA_VERSION, **key}


def _cartesia_body(ask: Ask, text: str) -> Fields:
    language: Fields = {"language": ask.language} if ask.language else {}
    return {
        "model_id": ask.model or _CARTESIA_MODEL,
        "transcript": text,
        "voice": {"mode": "id", "id": ask.voice or _CARTESIA_VOICE},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": RATE},
        **language,
    }


def _base64(value: object) -> bytes:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else b""


def _error(message: Fields | bytes) -> str:
    if isinstance(message, bytes):
        return "a binary message"
    found = message.get("error") or message.get("message") or message.get("title") or message
    return str(found.get("message", found) if isinstance(found, dict) else found)
