"""Speech as server-sent events, in OpenAI's shapes."""

import base64

from vivace.server.replies import as_json, error_object
from vivace.types import Done

MEDIA_TYPE = "text/event-stream"


def usage(done: Done) -> dict[str, int]:
    """Tokens of text in, frames of sound out."""
    return {
        "input_tokens": done.text_tokens,
        "output_tokens": done.frames,
        "total_tokens": done.text_tokens + done.frames,
    }


def delta(sound: bytes) -> bytes:
    """Some bytes of the sound; no event if there are none."""
    if not sound:
        return b""
    return _event("speech.audio.delta", audio=base64.b64encode(sound).decode())


def end(done: Done) -> bytes:
    """The end of speech that went well."""
    return _event("speech.audio.done", usage=usage(done), **done.told)


def fault(error: BaseException) -> bytes:
    """The end of speech that broke off."""
    return _event("speech.audio.error", error=error_object(error))


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), as_json({"type": kind, **fields}))
