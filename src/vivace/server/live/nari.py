"""The `nari.speech.v1` subprotocol: one request per connection, every append acknowledged."""

import uuid
from collections.abc import Mapping
from typing import ClassVar, Final

from vivace.errors import EngineFailure, InvalidRequest, VivaceError
from vivace.server.fields import Fields
from vivace.server.live.conversation import Body, Conversation, Stage, Verb
from vivace.server.live.turn import Ending, Turn
from vivace.server.live.wire import Event, Wire
from vivace.server.order import tell_unknown
from vivace.server.replies import error_object
from vivace.types import FinishReason

PROTOCOL: Final = "nari.speech.v1"


class Nari(Conversation):
    """`WS /v1/audio/speech/ws`."""

    example = '{"type": "request.start", "voice": "ryan"}'

    def __init__(self, stage: Stage, wire: Wire) -> None:
        super().__init__(stage, wire)
        self._request_id = uuid.uuid4().hex
        self._chunks = 0
        self._next = 0  # the sequence number of the next text
        self.say(type="session.created", protocol=PROTOCOL)

    async def begin(self, body: Body) -> None:
        """How to speak; the text comes after it."""
        if self.count:
            raise InvalidRequest("This connection has had its request.", code="second_request")
        self.start(self.manner(Fields(body)))
        self.say(type="request.configured", request_id=self._request_id)

    async def append(self, body: Body) -> None:
        """Text, in the order of its numbers."""
        fields = Fields(body)
        number = self._numbered(fields)
        text = fields.text("text")
        tell_unknown(fields, strict=True)
        if text is None:
            raise InvalidRequest("`text` is missing.", param="text")
        await self._told.append(text)
        self.say(type="input_text.ack", sequence=number, request_id=self._request_id)

    async def end(self, body: Body) -> None:
        """No more text."""
        fields = Fields(body)
        self._numbered(fields)
        tell_unknown(fields, strict=True)
        await self._told.end()

    async def cancel(self, body: Body) -> None:
        """Stop, and close."""
        tell_unknown(Fields(body), strict=True)
        for turn in list(self.turns.values()):
            self.cancelled(turn)
            self.say(**self._done(FinishReason.CANCELLED))
        self.wire.finish(Event.SAID_ALL)

    verbs: ClassVar[Mapping[str, Verb]] = {
        "request.start": begin,
        "input_text.append": append,
        "input_text.end": end,
        "response.cancel": cancel,
    }

    def refuse(self, error: VivaceError, turn: Turn[int] | None = None) -> None:
        """An error ends the request and its connection."""
        self.close()
        self.say(type="error", request_id=self._request_id, error=error_object(error))
        self.wire.fail(error)

    async def sound(self, turn: Turn[int], data: bytes) -> None:
        """Bare samples, after the word that they begin."""
        if not turn.begun:
            await self.send(type="response.started", request_id=self._request_id)
        await self.wire.send(data)
        self._chunks += 1

    async def tell_over(self, turn: Turn[int], ending: Ending) -> None:
        """`response.done`, or the error; then the connection is closed."""
        if ending.error is not None:
            error = ending.error
            await self.send(type="error", request_id=self._request_id, error=error_object(error))
            self.wire.fail(error if isinstance(error, VivaceError) else EngineFailure(""))
        else:
            await self.send(**self._done(ending.reason))
            self.wire.finish(Event.SAID_ALL)

    def _done(self, reason: FinishReason) -> dict[str, object]:
        return {
            "type": "response.done",
            "request_id": self._request_id,
            "stop_reason": reason,
            "audio_chunks": self._chunks,
        }

    def _numbered(self, fields: Fields) -> int:
        number = fields.whole("sequence", 0)
        if number != self._next:
            raise InvalidRequest(
                f"`sequence` must be {self._next}: numbers begin at 0 and rise by 1.",
                param="sequence",
            )
        self._next += 1
        return number

    @property
    def _told(self) -> Turn[int]:
        turn = self.taking
        if turn is None:
            raise InvalidRequest(
                "Text comes after request.start and before input_text.end.", code="no_open_turn"
            )
        return turn
