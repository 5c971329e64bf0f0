"""What stands before every route: is it a request, from whom, and from which page?

docs/security.md says what it promises.
"""

import asyncio
import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivace.errors import Forbidden, InvalidRequest, Unauthorized, VivaceError
from vivace.server.body import parse_object
from vivace.server.keys import Keys, shown_by
from vivace.server.metrics import Metrics
from vivace.server.replies import refusal, unrouted
from vivace.server.story import NOBODY

FREE: Final = frozenset({"/health", "/ready"})  # need no key
MOST_TARGET: Final = 8_192  # bytes of an address
MOST_HEAD: Final = 32_768  # bytes of all headers
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # change nothing and speak nothing
KEY_S: Final = 10.0  # after its opening a socket's first message must be there, if it has the key
# Sockets whose first message may hold the key, and the field it is in.
FIRST_MESSAGE: Final[Mapping[str, str]] = {
    "/stream-input": "xi_api_key",
    "/multi-stream-input": "xi_api_key",
}


class Gate:
    """Lets a request through to the routes, under the name of its key."""

    def __init__(
        self, app: ASGIApp, keys: Keys, origins: tuple[str, ...], metrics: Metrics
    ) -> None:
        self._app, self._keys, self._origins, self._metrics = app, keys, origins, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on, or answer it here."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        try:
            check_head(scope)
            check_origin(scope, self._origins, keyed=bool(self._keys))
            late = self._check_key(scope)
        except HTTPException as error:
            return await unrouted(scope, error)(scope, receive, send)
        except VivaceError as error:
            return await refusal(scope, error)(scope, receive, send)
        if late is not None:
            receive = self._first(scope, receive, send, late)
        await self._app(scope, receive, send)

    def _check_key(self, scope: Scope) -> str | None:
        """Find whose key it is; the field of the first message, if it is to be found there."""
        if not self._keys or scope["path"] in FREE:
            return None
        shown = shown_by(scope)
        if shown is None and scope["type"] == "websocket":
            for end, field in FIRST_MESSAGE.items():
                if scope["path"].endswith(end):
                    return field
        self._enter(scope, shown)
        return None

    def _enter(self, scope: Scope, shown: object) -> None:
        name = self._keys.name_of(shown) if isinstance(shown, str) else None
        if name is None:
            self._metrics.refusals.labels(NOBODY, "unknown" if shown else "missing").inc()
            raise Unauthorized(
                "An API key is needed: send Authorization: Bearer KEY."
                if shown is None
                else "There is no such API key.",
                code="invalid_api_key",
            )
        scope["state"]["key"] = name

    def _first(self, scope: Scope, receive: Receive, send: Send, field: str) -> Receive:
        """`receive`, which looks for the key in the first message; without it the socket closes.

        So it does if no message comes in time: who has no key shall hold no socket.
        """
        known, until_s = False, asyncio.get_running_loop().time() + KEY_S

        async def checked() -> Message:
            nonlocal known
            if known:
                return await receive()
            try:
                async with asyncio.timeout_at(until_s):
                    message = await receive()
            except TimeoutError:
                message = {"type": "websocket.receive", "text": "{}"}
            if message["type"] != "websocket.receive":
                return message
            try:
                self._enter(scope, _field(message, field))
            except Unauthorized as error:
                await send({"type": "websocket.close", "code": 1008, "reason": error.message})
                return {"type": "websocket.disconnect", "code": 1008}
            known = True
            return message

        return checked


def _field(message: Message, name: str) -> object:
    raw = message.get("text")
    if raw is None:
        raw = message["bytes"].decode("utf-8", "replace")
    with suppress(InvalidRequest):
        return parse_object(raw, "", "", halves="text").get(name)
    return None


def check_head(scope: Scope) -> None:
    """Refuse what two servers could read in two ways, and what is too long.

    An address with its host, as a proxy is asked, is brought into the usual form.

    Raises:
        HTTPException: 414 and 431.
        InvalidRequest: A body whose length is told in two ways.
    """
    target = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
    if target > MOST_TARGET:
        raise HTTPException(414, f"The address is over {MOST_TARGET:,} bytes.")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEAD:
        raise HTTPException(431, f"The headers are over {MOST_HEAD:,} bytes.")
    names = [name for name, _ in scope["headers"]]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise InvalidRequest("Transfer-Encoding and Content-Length do not go together.")
    if scope["path"].startswith(("http://", "https://")):
        _to_usual_form(scope)


def _to_usual_form(scope: Scope) -> None:
    """`GET http://host/path` is `GET /path` with this host, whatever its header says."""
    _, _, rest = scope["path"].partition("://")
    host, _, path = rest.partition("/")
    scope["path"] = "/" + path
    scope["raw_path"] = b"/" + scope["raw_path"].partition(b"://")[2].partition(b"/")[2]
    others = [pair for pair in scope["headers"] if pair[0] != b"host"]
    scope["headers"] = [*others, (b"host", host.encode("latin-1", "replace"))]


def check_origin(scope: Scope, allowed: tuple[str, ...], *, keyed: bool) -> None:
    """Refuse what another site's page sends by a visitor's browser; others send no Origin.

    A page of our own has our host for its origin. That alone is not enough for one who comes by the
    loopback interface without a key: any site can give its name the address of this machine.

    Raises:
        Forbidden: It is such a page's.
    """
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is None or (scope["type"] == "http" and scope["method"] in SAFE):
        return
    if origin in allowed or "*" in allowed:
        return
    host = headers.get("host", "")
    ours = origin.partition("://")[2].lower() == host.lower()
    if ours and (keyed or not _is_loopback(scope) or _is_here(host)):
        return
    raise Forbidden(
        f"Pages of {origin[:100]} may not use this server: --cors-origin allows one.",
        code="origin_not_allowed",
    )


def _is_loopback(scope: Scope) -> bool:
    """Did it come by the interface that only this machine has?"""
    try:
        return _loops(scope["server"][0])
    except (ValueError, TypeError):
        return True  # a Unix socket


def _is_here(host: str) -> bool:
    """Is that a name of this machine that nobody else can have?"""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return _loops(name)
    return False


def _loops(address: str) -> bool:
    """Is that an address of the loopback interface? Raises ValueError if it is none at all."""
    ip = ipaddress.ip_address(address)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback
