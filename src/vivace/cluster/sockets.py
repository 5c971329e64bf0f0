"""One WebSocket through the gate: messages both ways, and the end of either side."""

import asyncio
import contextlib
import json

import aiohttp
from starlette.types import Message, Receive, Scope, Send

from vivace.errors import EngineFailure, outcome
from vivace.server.replies import error_object

KINDS = (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)
PASSED = ("authorization", "xi-api-key", "x-api-key", "cartesia-version", "user-agent")


async def talk(
    session: aiohttp.ClientSession,
    url: str,
    scope: Scope,
    receive: Receive,
    send: Send,
    gone: str,
) -> None:
    """Connect and pass messages on. Raises ClientConnectionError while nothing has been said."""
    query = scope.get("query_string", b"").decode("latin-1")
    where = url.replace("http", "ws", 1) + scope["path"] + (f"?{query}" if query else "")
    headers = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name.decode("latin-1") in PASSED
    }
    try:
        there = await session.ws_connect(
            where, protocols=scope["subprotocols"], headers=headers, max_msg_size=0
        )
    except aiohttp.WSServerHandshakeError:
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
        return
    async with there:
        await receive()
        await send({"type": "websocket.accept", "subprotocol": there.protocol})
        upward = asyncio.create_task(_up(there, receive))
        try:
            await _down(there, send, gone)
        finally:
            upward.cancel()


async def _up(there: aiohttp.ClientWebSocketResponse, receive: Receive) -> None:
    """What the client says; its leaving ends the replica's side too."""
    with contextlib.suppress(ConnectionError, aiohttp.ClientError):
        while (message := await receive())["type"] != "websocket.disconnect":
            if message.get("text") is not None:
                await there.send_str(message["text"])
            elif message.get("bytes") is not None:
                await there.send_bytes(message["bytes"])
        await there.close()


async def _down(there: aiohttp.ClientWebSocketResponse, send: Send, gone: str) -> None:
    """What the replica says, then why it ended."""
    with contextlib.suppress(ConnectionError, RuntimeError):  # the client left
        while (message := await there.receive()).type in KINDS:
            await send(_said(message))
        if message.type is aiohttp.WSMsgType.CLOSE:
            reason = message.extra if isinstance(message.extra, str) else ""
            code = int(message.data or 1000)
        elif there.close_code in (None, 1006):
            error = EngineFailure(gone)
            said = {"type": "error", "turn_id": None, "error": error_object(error)}
            await send({"type": "websocket.send", "text": json.dumps(said)})
            code, reason = outcome(error).close, gone
        else:
            return  # we closed it: the client has left
        await send({"type": "websocket.close", "code": code, "reason": reason})


def _said(message: aiohttp.WSMessage) -> Message:
    name = "text" if message.type is aiohttp.WSMsgType.TEXT else "bytes"
    return {"type": "websocket.send", name: message.data}
