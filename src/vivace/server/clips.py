"""Reference clips in requests: what they say, whether their words fit, and the voices of them."""

import asyncio
import base64
import binascii
import hashlib
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vivace.audio.decoder import KNOWN, PARAM, Decoder
from vivace.audio.reference import prepare
from vivace.config import Limits, ServerConfig
from vivace.errors import (
    InvalidRequest,
    Overloaded,
    TooLarge,
    Unprocessable,
    VivaceError,
    as_it_was,
)
from vivace.roster import Offer
from vivace.server.fetch import fetch
from vivace.server.fields import Fields, bounded
from vivace.text.cap import SLACK_MS, text_ms
from vivace.text.clean import clean, speakable
from vivace.types import SAMPLE_RATE, SILENCE_MS, Clip, Clone, Pcm, SpeechRequest

if TYPE_CHECKING:
    from vivace.engine import Engine

THREADS: Final = 4  # clips fetched, decoded or waiting for the encoder at a time
MOST_WAITING: Final = 32  # more than these wait
AGAIN_S: Final = 2.0
KEPT: Final = 64  # voices of the latest clips, for the next turn or request with the same one
FASTEST: Final = 15  # times as fast as the longest that a text may become
NO_CLONING: Final = (
    "this checkpoint has voices of its own and takes none from a clip; a base one does."
)

ALONE: Final = ("x_vector_only", "x_vector_only_mode")  # the second is vLLM-Omni's

_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_DATA = re.compile(r"\s*data:[^,]{0,200};\s*base64\s*,", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*")


@dataclass(frozen=True, slots=True)
class Reference:
    """A clip as a request gives it: base64, a data URL or a URL; not yet looked at."""

    source: str
    text: str  # "" for an x-vector alone
    language: str
    silence_ms: int = SILENCE_MS
    model: str | None = None  # that is to speak with it

    @property
    def digest(self) -> bytes:
        """What its voice depends on."""
        words = f"{self.silence_ms} {self.language} {self.text}"
        return hashlib.sha256(f"{words}\0{self.source}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Voice:
    """A clip's voice, and what is to be said about it."""

    clone: Clone
    warnings: tuple[str, ...]


def takes_clips(engine: "Engine") -> bool:
    """Is one of its models a base one?"""
    return any(model.spec.kind == "base" for model in engine.models)


def most_body(engine: "Engine", limits: Limits) -> int:
    """Bytes of a body: a clip in base64, with line ends, finds room where there is cloning."""
    return limits.body_bytes + (limits.clip_bytes * 3 // 2 if takes_clips(engine) else 0)


def read_reference(fields: Fields, model: Offer, language: str, limits: Limits) -> Reference | None:
    """The clip of a request for a base checkpoint; None for others, which may not have one.

    Raises:
        InvalidRequest: And its children; `param` names the field at fault.
    """
    if model.spec.kind != "base":
        _refuse(fields)
        return None
    source, text = fields.text(PARAM), fields.text("ref_text")
    alone = {name: fields.flag(name) for name in ALONE}
    if set(alone.values()) == {True, False}:
        raise Unprocessable(f"`{ALONE[0]}` and `{ALONE[1]}` disagree: send one.", param=ALONE[1])
    silence_ms = fields.whole("ref_silence_ms", 0, limits.clip_silence_ms)
    if source is None or not source.strip():
        raise InvalidRequest(
            f"`{PARAM}` is missing: this checkpoint speaks with the voice of a clip.", param=PARAM
        )
    if True in alone.values():
        if text:
            fields.warnings.append("ref_text is not used: x_vector_only takes the voice alone")
        text = ""
    else:
        text = words_of(text, limits)
    if silence_ms is None:
        silence_ms = SILENCE_MS
    return Reference(source, text, language, silence_ms, model.model_id)


def words_of(text: str | None, limits: Limits) -> str:
    """The words in the clip, cleaned. Raises InvalidRequest and its children."""
    if text is None or not text.strip():
        raise InvalidRequest(
            "`ref_text` is missing: the words in the clip. Without them, send "
            '"x_vector_only": true.',
            param="ref_text",
        )
    bounded("ref_text", text, limits.ref_text_chars)
    if not speakable(text):
        raise Unprocessable("`ref_text` holds nothing that can be spoken.", param="ref_text")
    return clean(text, "ref_text")


def _refuse(fields: Fields) -> None:
    """None of these fields is for a checkpoint with voices of its own."""
    for name in (PARAM, "ref_text", "ref_silence_ms"):
        fields.refuse(name, NO_CLONING)
    for name in ALONE:
        if fields.flag(name):
            raise Unprocessable(f"`{name}`: {NO_CLONING}", param=name, code="not_supported")


def data_of(source: str, config: ServerConfig) -> bytes:
    """The bytes of a clip's file: from base64, or fetched if that is allowed; never from a path.

    Raises:
        InvalidRequest: And its children; `param` is `ref_audio`.
    """
    scheme = _SCHEME.match(source)
    if scheme is None or scheme[1].lower() == "data":
        return _decoded(source, config.limits)
    if not config.ref_urls or scheme[1].lower() != "https":
        what = "only https URLs are fetched" if config.ref_urls else "URLs are not fetched here"
        raise Unprocessable(
            f"`{PARAM}`: {what}. Send the file in base64, or as a data URL.",
            param=PARAM,
            code="url_not_allowed",
        )
    return fetch(source.strip(), config.limits)


def _decoded(source: str, limits: Limits) -> bytes:
    """From base64 of either alphabet, with or without padding, line ends and `data:...,`."""
    if source.lstrip()[:5].lower() == "data:":
        head = _DATA.match(source)
        if head is None:
            raise InvalidRequest(
                f"`{PARAM}`: a data URL must be data:audio/wav;base64, and the file.", param=PARAM
            )
        source = source[head.end() :]
    plain = _SPACE.sub("", source).replace("-", "+").replace("_", "/").rstrip("=")
    if len(plain) * 3 // 4 > limits.clip_bytes:
        raise TooLarge(
            f"`{PARAM}` has {len(plain) * 3 // 4:,} bytes; the limit is {limits.clip_bytes:,}.",
            param=PARAM,
            code="clip_too_large",
        )
    try:
        if not plain or not _BASE64.fullmatch(plain):
            raise ValueError
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise InvalidRequest(
            f"`{PARAM}` must be a file of sound in base64, or a data URL of one. Formats: {KNOWN}.",
            param=PARAM,
            code="not_base64",
        ) from None


def check_words(text: str, seconds: float, language: str) -> list[str]:
    """Can so many words be said in so many seconds? Raises Unprocessable if nobody could.

    The longest that a text may become is about three times what it takes on average.
    """
    longest_s = text_ms(text, language) / 1000
    if longest_s / FASTEST > seconds:
        raise Unprocessable(
            f"`ref_text` has {len(text):,} characters, which cannot be said in the clip's "
            f"{seconds:.1f} s: it must be the words in the clip, and no others.",
            param="ref_text",
            code="text_does_not_fit",
        )
    if seconds > longest_s + SLACK_MS / 1000:
        return [f"ref_text is short for a clip of {seconds:.1f} s: it must be all of its words"]
    return []


class Clones:
    """Makes voices of references, aside, and keeps the latest.

    What two requests want at the same time is made once. A client that leaves does not stop it:
    others may wait for it, and it is bounded.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._decoder = Decoder(config.limits)
        self._pool = ThreadPoolExecutor(THREADS, "vivace-clips")
        self._waiting = 0
        self._made: OrderedDict[tuple[str, bytes], asyncio.Future[Voice]] = OrderedDict()

    def prepare(self) -> None:
        """Be ready for a first clip."""
        self._decoder.prepare()

    def decode(self, data: bytes, *, as_it_is: bool = False) -> tuple[Pcm, list[str]]:
        """Samples of a clip's file and warnings; blocks. Silence stays in one that is `as_it_is`.

        Raises Unprocessable for what no voice can be taken from.
        """
        return prepare(self._decoder.decode(data), self._config.limits, as_it_is=as_it_is)

    async def request(
        self, engine: "Engine", request: SpeechRequest, reference: Reference | None
    ) -> tuple[SpeechRequest, tuple[str, ...]]:
        """The request with the voice of its clip, if it has one, and warnings about that.

        Raises InvalidRequest and its children for a clip that gives none, Overloaded.
        """
        if reference is None:
            return request, ()
        voice = await self.voice(engine, reference)
        return replace(request, clone=voice.clone), voice.warnings

    async def voice(self, engine: "Engine", reference: Reference) -> Voice:
        """The voice of a clip."""
        key = str(reference.model), await asyncio.to_thread(lambda: reference.digest)
        making = self._made.get(key)
        if making is None:
            making = self._begin(engine, reference)
            self._made[key] = making
        self._made.move_to_end(key)
        try:
            return await asyncio.shield(making)
        except VivaceError as error:
            # An object of its own: each of those who wait may add to it.
            raise as_it_was(type(error), vars(error)) from error
        finally:
            self._forget()

    def _begin(self, engine: "Engine", reference: Reference) -> "asyncio.Future[Voice]":
        if self._waiting >= MOST_WAITING:
            text = f"{MOST_WAITING} clips wait to be looked at"
            raise Overloaded(text, retry_after_s=AGAIN_S)
        self._waiting += 1
        loop = asyncio.get_running_loop()
        making = loop.run_in_executor(self._pool, self._make, engine, reference)
        making.add_done_callback(self._ended)
        return making

    def _ended(self, making: "asyncio.Future[Voice]") -> None:
        self._waiting -= 1
        if not making.cancelled():
            making.exception()  # looked at, also if nobody waits any more

    def _forget(self) -> None:
        """Keep no more than so many, and none that failed: its cause may pass."""
        for key, making in list(self._made.items()):
            if making.done() and (making.cancelled() or making.exception() is not None):
                del self._made[key]
        done = [key for key, making in self._made.items() if making.done()]
        for key in done[: max(0, len(done) - KEPT)]:
            del self._made[key]

    def _make(self, engine: "Engine", reference: Reference) -> Voice:
        """From the file to the voice; blocks."""
        data = data_of(reference.source, self._config)
        pcm, warnings = self.decode(data, as_it_is=reference.silence_ms == 0)
        if reference.text:
            warnings += check_words(reference.text, len(pcm) / SAMPLE_RATE, reference.language)
        clip = Clip(pcm, reference.text, reference.silence_ms)
        clone = engine.clone(clip, reference.model)
        return Voice(clone, tuple(warnings))
