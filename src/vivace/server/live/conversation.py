"""What every dialect on a socket shares: messages into calls, turns one after another, errors."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vivace.config import ServerConfig
from vivace.errors import InvalidRequest, Unavailable, Unprocessable, VivaceError
from vivace.server.body import parse_object
from vivace.server.fields import Fields
from vivace.server.live.turn import Ending, Turn
from vivace.server.live.wire import Event, Link, Wire, encode
from vivace.server.order import Manner, read_manner, tell_unknown
from vivace.server.replies import error_object
from vivace.server.shelf import EMPTY, Shelf
from vivace.server.story import Story
from vivace.server.workers import Workers

if TYPE_CHECKING:
    from vivace.engine import Engine

MOST_TURNS = 8  # open at a time: one that speaks, others whose text waits


@dataclass(frozen=True, slots=True)
class Stage:
    """What conversations need of the server around them."""

    engine: "Engine"
    config: ServerConfig
    workers: Workers
    draining: Callable[[], bool] = lambda: False
    shelf: Shelf = EMPTY


Body = dict[str, object]  # a message without its `type`
Verb = Callable[[Any, Body], Awaitable[None]]


class Conversation:
    """One client's turns. A dialect says which messages there are and how it answers."""

    verbs: ClassVar[Mapping[str, Verb]]
    example: ClassVar[str]
    form: ClassVar[str] = "pcm"  # of the sound, where the client does not say

    def __init__(self, stage: Stage, wire: Wire) -> None:
        self.stage, self.wire = stage, wire
        self.turns: dict[int, Turn[int]] = {}  # open ones, oldest first
        self.count = 0  # of turns so far

    async def hear(self, message: str | bytes) -> None:
        """Do what a message says; one that is illegal is answered and changes nothing."""
        try:
            body, verb = self._read(message)
            await verb(self, body)
        except VivaceError as error:
            self.refuse(error)

    def _read(self, message: str | bytes) -> tuple[Body, Verb]:
        if isinstance(message, bytes):
            raise InvalidRequest("Messages are JSON text; got a binary one.", code="binary_message")
        body = parse_object(message, "The message", self.example, halves="text")
        kind = body.pop("type", None)
        if not isinstance(kind, str) or kind not in self.verbs:
            known = ", ".join(self.verbs)
            said = f"type {kind[:64]!r}" if isinstance(kind, str) else "no type"
            raise InvalidRequest(
                f"A message of {said}; there are {known}.", param="type", code="unknown_type"
            )
        return body, self.verbs[kind]

    def refuse(self, error: VivaceError, turn: Turn[int] | None = None) -> None:
        """Answer what cannot be done."""
        self.say(type="error", turn_id=turn and turn.id, error=error_object(error))

    def say(self, **message: object) -> None:
        """Post a message of JSON."""
        self.wire.post(encode(message))

    async def send(self, **message: object) -> None:
        """Send one when there is room, after what a turn has sent before. Raises Gone."""
        await self.wire.send(encode(message))

    def manner(self, fields: Fields) -> Manner:
        """How to speak, by fields of which none may be unknown."""
        stage = self.stage
        manner = read_manner(fields, stage.engine, stage.config, stage.shelf, self.form)
        tell_unknown(fields, strict=True)
        if manner.output.sse:
            raise Unprocessable("A socket has no server-sent events.", param="stream_format")
        stage.workers.foresee(stage.engine, manner.reference)
        return manner

    @property
    def taking(self) -> Turn[int] | None:
        """The turn that takes text."""
        last = next(reversed(self.turns.values()), None)
        return None if last is None or last.ended else last

    def start(self, manner: Manner) -> Turn[int]:
        """Open the next turn; it speaks when those before it are over."""
        if self.wire.link is Link.DRAINING or self.stage.draining():
            raise Unavailable("The server goes down and begins no turn.")
        if len(self.turns) >= MOST_TURNS:
            raise Unprocessable(
                f"{MOST_TURNS} turns are open; one must end first.", code="too_many_turns"
            )
        story = self.wire.story.part("turn")
        story.admit()
        self.count += 1
        return self._open(self.count, manner, story)

    def restart(self, turn: Turn[int]) -> None:
        """Forget all that a turn has been told."""
        del self.turns[turn.id]
        story = self.wire.story.part("turn")
        story.follows(turn.story)
        turn.cancel()
        self._open(turn.id, Manner(turn.request, turn.output, turn.reference), story)

    def _open(self, id: int, manner: Manner, story: Story) -> Turn[int]:
        stage, before = self.stage, self.turns.values()
        turn = Turn(
            id,
            stage.engine,
            manner.request,
            manner.output,
            stage.workers,
            self,
            reference=manner.reference,
            story=story,
            most_chars=stage.config.limits.text_chars,
            after=before,
        )
        self.turns[id] = turn
        return turn

    def cancelled(self, turn: Turn[int]) -> None:
        """Stop a turn: nothing of it is written from here on."""
        del self.turns[turn.id]
        turn.cancel()
        self._last_over()

    async def sound(self, turn: Turn[int], data: bytes) -> None:
        """Send some of a turn's sound."""
        await self.wire.send(data)

    async def refused(self, turn: Turn[int], error: VivaceError) -> None:
        """Answer for text that had to wait before it was found wanting."""
        self.refuse(error, turn)

    async def over(self, turn: Turn[int], ending: Ending) -> None:
        """Tell the client how a turn ended."""
        await self.tell_over(turn, ending)
        del self.turns[turn.id]  # no await in between: it was told, it cannot be cancelled
        self._last_over()

    async def tell_over(self, turn: Turn[int], ending: Ending) -> None:
        """The dialect's terminal message."""
        raise NotImplementedError

    def drain(self) -> None:
        """The server goes down: finish what is open, begin nothing."""
        self._last_over()

    def close(self) -> None:
        """The client is gone."""
        for turn in list(self.turns.values()):
            self.cancelled(turn)

    def _last_over(self) -> None:
        if self.wire.link is Link.DRAINING and not self.turns:
            self.wire.finish(Event.DRAINED, "the server goes down")


def only(body: Body, *names: str) -> list[str | None]:
    """The named strings of a message that may have no other fields."""
    fields = Fields(body)
    values = [fields.text(name) for name in names]
    tell_unknown(fields, strict=True)
    return values
