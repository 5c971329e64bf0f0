"""One utterance over a WebSocket: whole or in words at a pace, with a time for every message."""

import asyncio
import json
import time
from urllib.parse import urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from vivace.bench.answer import MOST_BYTES, Answer, Manners, status_kind
from vivace.bench.http import Peer
from vivace.bench.targets import Heard, Talk

_TRY_AGAIN_LATER = 1013


async def talk(
    peer: Peer,
    talk: Talk,
    words: list[str],
    due_s: float,
    pace_s: float,
    manners: Manners,
    timeout_s: float,
) -> Answer:
    """Connect and greet now, send the words from `due_s` on. Never raises for what a server does.

    Time zero is the first message that carries text.
    """
    started_s, loop = time.monotonic(), asyncio.get_running_loop()
    answer = Answer(sent_s=started_s)
    try:
        async with asyncio.timeout(timeout_s) as limit:
            socket = await _open(peer, talk)
            try:
                await _greet(socket, talk)
                answer.setup_s = time.monotonic() - started_s
                await asyncio.sleep(due_s - time.monotonic())
                answer.sent_s = time.monotonic()
                limit.reschedule(loop.time() + timeout_s)
                await _converse(socket, talk, words, pace_s, manners, answer)
                answer.ended_s = time.monotonic()
            finally:
                socket.transport.abort()
    except TimeoutError:
        answer.fail("timeout", f"no end within {timeout_s:g} s")
    except InvalidStatus as error:
        answer.status = error.response.status_code
        answer.fail(status_kind(answer.status), error)
    except InvalidHandshake as error:
        answer.fail("protocol", error)
    except ConnectionClosed as error:
        _closed(error, talk, answer)
    except OSError as error:
        answer.fail("unreachable", error)
    except ValueError as error:
        answer.fail("protocol", error)
    answer.ended_s = answer.ended_s or time.monotonic()
    return answer


async def _open(peer: Peer, talk: Talk) -> ClientConnection:
    scheme = "wss" if peer.tls else "ws"
    host = f"[{peer.host}]" if ":" in peer.host else peer.host
    return await connect(
        urlunsplit((scheme, f"{host}:{peer.port}", talk.path, "", "")),
        host=peer.address,
        port=peer.port,
        ssl=peer.tls,
        subprotocols=[Subprotocol(talk.subprotocol)] if talk.subprotocol else None,
        additional_headers=talk.headers,
        compression=None,
        max_size=None,
        open_timeout=None,
        proxy=None,
    )


async def _greet(socket: ClientConnection, talk: Talk) -> None:
    if talk.greeting:
        await socket.send(json.dumps(talk.greeting))
    while talk.awaits:
        heard = _hear(talk, await socket.recv())
        if heard.error:
            raise ValueError(heard.error)
        if heard.ready:
            return


async def _converse(
    socket: ClientConnection,
    talk: Talk,
    words: list[str],
    pace_s: float,
    manners: Manners,
    answer: Answer,
) -> None:
    """Write and read at the same time, until the server says that it is done."""
    writing = asyncio.create_task(_write(socket, talk, words, answer.sent_s, pace_s))
    size = 0
    try:
        while answer.kind == "ok":
            message = await socket.recv()
            now_s = time.monotonic()
            heard = _hear(talk, message)
            if heard.sound:
                answer.arrivals.append((now_s, heard.sound))
                size += len(heard.sound)
            if heard.error:
                answer.fail("error_event", heard.error)
            if heard.done:
                answer.finish = heard.finish
                return
            if size > MOST_BYTES:
                answer.fail("endless", f"over {MOST_BYTES} bytes")
            if manners.bytes_s:
                await asyncio.sleep(len(heard.sound) / manners.bytes_s)
            first_s = answer.arrivals[0][0] if answer.arrivals else now_s
            if manners.leave_after_s is not None and now_s - first_s >= manners.leave_after_s:
                answer.fail("left")
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def _hear(talk: Talk, message: str | bytes) -> Heard:
    if isinstance(message, bytes):
        return talk.hear(message)
    found = json.loads(message)
    if not isinstance(found, dict):
        raise ValueError(f"a message that is no object: {message[:80]}")
    return talk.hear(found)


async def _write(
    socket: ClientConnection, talk: Talk, words: list[str], start_s: float, pace_s: float
) -> None:
    for i, message in enumerate(talk.texts(words)):
        if pace_s and i < len(words):
            await asyncio.sleep(start_s + i * pace_s - time.monotonic())
        await socket.send(json.dumps(message, ensure_ascii=False))


def _closed(error: ConnectionClosed, talk: Talk, answer: Answer) -> None:
    """The server closed: its way to end, to refuse, or a fault?"""
    code = error.rcvd.code if error.rcvd else None
    if code == _TRY_AGAIN_LATER:
        answer.fail("refused", error)
    elif not (talk.closes_when_done and code == 1000 and answer.arrivals):
        answer.fail("truncated", error)
