"""A vendor's socket: its contexts, each a text that is spoken while it comes."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from vivace.errors import Unavailable, Unprocessable, VivaceError
from vivace.server.body import parse_object
from vivace.server.fields import Fields
from vivace.server.live.turn import Sink, Turn
from vivace.server.live.wire import Event, Gone, Wire
from vivace.server.order import Order
from vivace.server.vendors import Edge

MOST_CONTEXTS: Final = 32  # open at a time on one socket


class Context(Protocol):
    """What a socket asks of each of its contexts."""

    async def end(self) -> None:
        """No more text comes."""
        ...

    def cancel(self) -> None:
        """Stop at once."""
        ...


C = TypeVar("C", bound=Context)


class Contexts(Generic[C]):
    """The contexts of one socket that are not over; they go when it does."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._open: dict[str, C] = {}
        self._leaving: Event | None = None  # why it closes once the last of them is over
        self._endings: set[asyncio.Task[None]] = set()

    def find(self, id: str) -> C | None:
        """The open context of that name."""
        return self._open.get(id)

    def check_room(self) -> None:
        """Raises Unavailable if the socket is about to close, Unprocessable at the limit."""
        if self._leaving is not None:
            raise Unavailable("This socket takes no new contexts: it is closing.")
        if len(self._open) >= MOST_CONTEXTS:
            raise Unprocessable(
                f"{MOST_CONTEXTS} contexts are open, which is the most of one socket.",
                param="context_id",
                code="too_many_contexts",
            )

    def add(self, id: str, context: C) -> C:
        """Hold one more."""
        self._open[id] = context
        return context

    def remove(self, id: str) -> None:
        """One is over, or stops here; it may be gone already."""
        if context := self._open.pop(id, None):
            context.cancel()
        if self._leaving is not None and not self._open:
            self._wire.finish(self._leaving, "all is said")

    def leave(self, why: Event = Event.SAID_ALL) -> None:
        """Take no more text, speak what there is, then close the socket."""
        self._leaving = why
        for context in self._open.values():
            ending = asyncio.create_task(context.end())
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
        if not self._open:
            self._wire.finish(why, "all is said")

    def cancel(self) -> None:
        """Nobody listens any more."""
        for context in self._open.values():
            context.cancel()
        self._open.clear()


class Dialect(Protocol[C]):
    """One vendor's messages on one socket."""

    wire: Wire
    contexts: Contexts[C]
    example: str  # of a message
    halves: str  # the field that is text, which may be cut anywhere

    def name(self, fields: Fields) -> str:
        """Which context a message is for."""
        ...

    async def take(self, id: str, fields: Fields) -> None:
        """Do what a message says. Raises VivaceError if it cannot be done."""
        ...

    def refuse(self, error: VivaceError, id: str | None) -> None:
        """Say what was wrong, without waiting; it is the end of the context, if there is one."""
        ...


async def converse(dialect: Dialect[C]) -> None:
    """Accept the socket and hear every message until it closes; no session outlives it."""
    wire, contexts = dialect.wire, dialect.contexts

    async def hear(raw: str | bytes) -> None:
        id = None
        try:
            text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
            fields = Fields(parse_object(text, "A message", dialect.example, halves=dialect.halves))
            id = dialect.name(fields)
            await dialect.take(id, fields)
        except VivaceError as error:
            dialect.refuse(error, id)

    with suppress(Gone):
        await wire.accept()
        try:
            await wire.serve(hear, partial(contexts.leave, Event.DRAINED))
        finally:
            contexts.cancel()


def turn(
    edge: Edge,
    wire: Wire,
    id: int,
    order: Order,
    sink: Sink[int],
    after: Turn[int] | None = None,
) -> Turn[int]:
    """A turn in the manner of an order; its text is still to come.

    Raises Overloaded if its key's quota is used up.
    """
    story = wire.story.part("turn")
    story.admit()
    return Turn(
        id,
        edge.engine,
        order.request,
        order.output,
        edge.workers,
        sink,
        reference=order.reference,
        story=story,
        most_chars=edge.config.limits.text_chars,
        after=() if after is None else (after,),
    )
