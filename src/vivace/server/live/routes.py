"""The socket routes: a connection finds its dialect."""

import contextlib

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send

from vivace.errors import InvalidRequest
from vivace.server.body import parse_object
from vivace.server.live.conversation import Conversation, Stage
from vivace.server.live.nari import PROTOCOL as NARI
from vivace.server.live.nari import Nari
from vivace.server.live.native import PROTOCOL, Native
from vivace.server.live.omni import CONFIG, Omni
from vivace.server.live.wire import Gone, Patience, Wire


def socket_routes(stage: Stage) -> list[BaseRoute]:
    """The native socket with vLLM-Omni's messages as an alias, and nari's."""
    return [
        WebSocketRoute("/v1/audio/speech/stream", Talk(stage, PROTOCOL, Native)),
        WebSocketRoute("/v1/audio/speech/ws", Talk(stage, NARI, Nari)),
    ]


class Talk:
    """One route; called once per connection."""

    def __init__(self, stage: Stage, protocol: str, dialect: type[Conversation]) -> None:
        self._stage, self._protocol, self._dialect = stage, protocol, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Talk until one side ends it; no session outlives its connection."""
        config = self._stage.config
        wire = Wire(receive, send, Patience(config.idle_s, config.stall_s), scope)
        with contextlib.suppress(Gone):
            await wire.accept(self._protocol if self._protocol in scope["subprotocols"] else None)
            line = Line(self._dialect(self._stage, wire))
            try:
                await wire.serve(line.hear, line.drain)
            finally:
                line.talk.close()


class Line:
    """A conversation whose dialect may turn out with the first message."""

    def __init__(self, talk: Conversation) -> None:
        self.talk, self._fresh = talk, isinstance(talk, Native)

    async def hear(self, message: str | bytes) -> None:
        """Pass a message on."""
        if self._fresh and _is_config(message):
            self.talk = Omni(self.talk.stage, self.talk.wire)
        self._fresh = False
        await self.talk.hear(message)

    def drain(self) -> None:
        """The server goes down."""
        self.talk.drain()


def _is_config(message: str | bytes) -> bool:
    with contextlib.suppress(InvalidRequest):
        return isinstance(message, str) and parse_object(message, "", "").get("type") == CONFIG
    return False
