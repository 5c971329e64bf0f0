"""vivace's own dialect: many turns on one socket. docs/socket.md shows it from outside."""

import base64
import struct
import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final

from vivace.errors import InvalidRequest
from vivace.server.clips import most_body
from vivace.server.fields import Fields
from vivace.server.live.conversation import MOST_TURNS, Body, Conversation, Stage, Verb, only
from vivace.server.live.turn import Ending, Turn
from vivace.server.live.wire import Wire
from vivace.server.order import Manner, tell_unknown
from vivace.server.replies import error_object

PROTOCOL: Final = "vivace.speech.v1"
TURN_ID: Final = struct.Struct("<I")  # before the sound in every binary message


class State(StrEnum):
    """Where a turn is."""

    NEW = "new"  # no message of it has come
    TAKING = "taking"  # text comes; sound goes out already
    SPEAKING = "speaking"  # all text is there
    DONE = "done"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What happens to a turn: messages, but for the last."""

    APPEND = "input_text.append"
    FLUSH = "input_text.flush"
    CLEAR = "input_text.clear"
    END = "input_text.end"
    CANCEL = "response.cancel"
    OVER = "over"  # its session has ended by itself, whatever the reason


TURN: Final[Mapping[tuple[State, Event], State]] = {
    (State.NEW, Event.APPEND): State.TAKING,
    (State.NEW, Event.END): State.SPEAKING,  # an empty turn
    (State.TAKING, Event.APPEND): State.TAKING,
    (State.TAKING, Event.FLUSH): State.TAKING,
    (State.TAKING, Event.CLEAR): State.TAKING,
    (State.TAKING, Event.END): State.SPEAKING,
    (State.TAKING, Event.CANCEL): State.CANCELLED,
    (State.TAKING, Event.OVER): State.DONE,  # it failed, or reached its cap
    (State.SPEAKING, Event.CANCEL): State.CANCELLED,
    (State.SPEAKING, Event.OVER): State.DONE,
}


class Native(Conversation):
    """`WS /v1/audio/speech/stream`."""

    example = '{"type": "input_text.append", "text": "Hello."}'

    def __init__(self, stage: Stage, wire: Wire) -> None:
        super().__init__(stage, wire)
        self.states: dict[int, State] = {}  # of the turns that are open
        self._wishes: dict[str, object] = {}  # what session.update has said so far
        self._manner: Manner | None = None
        self._base64 = False
        self.say(
            type="session.created",
            session_id=uuid.uuid4().hex,
            protocol=PROTOCOL,
            model=stage.engine.model_id,
            limits=self._limits(),
        )

    def _limits(self) -> dict[str, object]:
        config = self.stage.config
        return {
            "message_bytes": most_body(self.stage.engine, config.limits),
            "turn_chars": config.limits.text_chars,
            "open_turns": MOST_TURNS,
            "idle_s": config.idle_s,
            "stall_s": config.stall_s,
        }

    # What a client says.

    async def update(self, body: Body) -> None:
        """Other wishes from the next turn on; what is not named stays, null takes it back."""
        wishes = {name: v for name, v in {**self._wishes, **body}.items() if v is not None}
        manner, as_text = self._read_wishes(wishes)
        self._wishes, self._manner, self._base64 = wishes, manner, as_text
        request, output = manner.request, manner.output
        self.say(
            type="session.updated",
            model=request.model,
            voice=request.voice,
            language=request.language,
            format=output.format.name,
            sample_rate=output.rate,
            encoding="base64" if as_text else "binary",
        )

    def _read_wishes(self, wishes: Mapping[str, object]) -> tuple[Manner, bool]:
        fields = Fields(wishes)
        as_text = fields.choice("encoding", ("binary", "base64")) == "base64"
        fields.rename("format", "response_format")
        return self.manner(fields), as_text

    async def append(self, body: Body) -> None:
        """More text; the first of it opens a turn."""
        (text,) = only(body, "text")
        if text is None:
            raise InvalidRequest("`text` is missing.", param="text")
        turn = self._stepped(Event.APPEND)
        await turn.append(text)

    async def flush(self, body: Body) -> None:
        """Speak what has come without waiting for more."""
        only(body)
        await self._stepped(Event.FLUSH).flush()

    async def end(self, body: Body) -> None:
        """The turn has all of its text; without any it is an empty turn."""
        only(body)
        await self._stepped(Event.END).end()

    async def clear(self, body: Body) -> None:
        """Forget the text of a turn that has not been heard; it goes on with what comes next."""
        only(body)
        turn = self.taking
        if turn is not None and turn.begun:
            raise InvalidRequest(
                "This turn is heard already: response.cancel stops it.", code="already_speaking"
            )
        turn = self._stepped(Event.CLEAR)
        self.restart(turn)
        self.say(type="input_text.cleared", turn_id=turn.id)

    async def cancel(self, body: Body) -> None:
        """Stop one turn, or all that are open."""
        fields = Fields(body)
        id = fields.whole("turn_id", 1)
        tell_unknown(fields, strict=True)
        turns = [turn for turn in self.turns.values() if id in (None, turn.id)]
        if not turns:
            raise _illegal(Event.CANCEL, "no such turn is open" if id else "no turn is open")
        for turn in turns:
            self._step(turn.id, Event.CANCEL)
            played_s = round(turn.played_s, 3)
            self.cancelled(turn)
            self.say(type="response.cancelled", turn_id=turn.id, played_s=played_s)

    async def keepalive(self, body: Body) -> None:
        """Nothing, but the connection is in use."""
        only(body)

    verbs: ClassVar[Mapping[str, Verb]] = {
        "session.update": update,
        "session.keepalive": keepalive,
        Event.APPEND: append,
        Event.FLUSH: flush,
        Event.CLEAR: clear,
        Event.END: end,
        Event.CANCEL: cancel,
    }

    # What turns say.

    async def sound(self, turn: Turn[int], data: bytes) -> None:
        """Every piece says whose it is."""
        if not self._base64:
            await self.wire.send(TURN_ID.pack(turn.id) + data)
            return
        audio = base64.b64encode(data).decode()
        await self.send(type="speech.audio.delta", turn_id=turn.id, audio=audio)

    async def tell_over(self, turn: Turn[int], ending: Ending) -> None:
        """`speech.audio.done`."""
        error = {} if ending.error is None else {"error": error_object(ending.error)}
        await self.send(
            type="speech.audio.done",
            turn_id=turn.id,
            finish_reason=ending.reason,
            audio_s=round(turn.sent_s, 3),
            skipped=ending.skipped,
            **({"guard": cut} if (cut := ending.done and ending.done.cut) else {}),
            **error,
        )
        self._step(turn.id, Event.OVER)

    # Turns and their states.

    @property
    def _wanted(self) -> Manner:
        if self._manner is None:
            self._manner, self._base64 = self._read_wishes(self._wishes)
        return self._manner

    def _stepped(self, event: Event) -> Turn[int]:
        """The turn that takes text, or a new one, after a message of it."""
        turn = self.taking
        if turn is not None:
            self._step(turn.id, event)
            return turn
        if (State.NEW, event) not in TURN:
            raise _illegal(event, "no turn takes text")
        turn = self.start(self._wanted)
        self.states[turn.id] = TURN[State.NEW, event]
        self.say(type="response.created", turn_id=turn.id)
        return turn

    def _step(self, id: int, event: Event) -> None:
        state = TURN[self.states[id], event]  # what is illegal has been refused
        if state in (State.DONE, State.CANCELLED):
            del self.states[id]
        else:
            self.states[id] = state


def _illegal(event: Event, why: str) -> InvalidRequest:
    return InvalidRequest(f"{event}: {why}.", param="type", code="no_open_turn")
