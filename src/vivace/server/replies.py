"""What every response shares: a request id, and one envelope for every error."""

import json
import math
import re
import uuid
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivace.errors import Overloaded, TooLarge, Unauthorized, Unavailable, VivaceError, outcome
from vivace.server.story import story_of

_SANE_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
MOST_ECHO = 200  # characters of an address in an answer
_UNFIT_FOR_A_HEADER = re.compile(r"[^ -~]")


class WithRequestId:
    """Puts `x-request-id` on every response, errors included: the client's own if it is sane."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under its id."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers.setdefault("x-content-type-options", "nosniff")
            await send(message)

        await self._app(scope, receive, send_tagged)


def header_safe(text: str) -> str:
    """Printable ASCII with no space at its ends: a client's own words cannot break a header."""
    return _UNFIT_FOR_A_HEADER.sub("?", text)[:512].strip()


def warned(warnings: Sequence[str]) -> dict[str, str]:
    """The header that says what of a request was not used."""
    return {"x-vivace-warning": header_safe("; ".join(warnings))} if warnings else {}


def error_object(error: BaseException) -> dict[str, str | None]:
    """OpenAI's error object. What failed on our side is in the log, not in its message."""
    seen = outcome(error)
    if not isinstance(error, VivaceError):
        return _object("The server failed; the log says why.", seen.type)
    return _object(error.message, seen.type, error.param, error.code)


def _object(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, str | None]:
    return {"message": message, "type": kind, "param": param and param[:64], "code": code}


def as_json(content: object) -> bytes:
    """UTF-8, in which half a character of the request comes back as ?."""
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")


def _envelope(status: int, error: dict[str, str | None]) -> Response:
    return Response(as_json({"error": error}), status, media_type="application/json")


async def refused(request: Request, error: Exception) -> Response:
    """One of our own errors as a response."""
    assert isinstance(error, VivaceError)
    return refusal(request.scope, error)


def refusal(scope: Scope, error: VivaceError) -> Response:
    """The same for a request or a handshake that has not come as far as a route."""
    headers = Headers(scope=scope)
    response = _envelope(outcome(error).status, error_object(error))
    if isinstance(error, Overloaded | Unavailable) and error.retry_after_s is not None:
        response.headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        response.headers["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1000))
    if isinstance(error, Unauthorized):
        page = "text/html" in headers.get("accept", "")  # a browser asks its user
        response.headers["www-authenticate"] = f'{"Basic" if page else "Bearer"} realm="vivace"'
    if isinstance(error, TooLarge) and "content-length" not in headers:
        response.headers["connection"] = "close"  # or the rest would be read, however long it is
    if "transfer-encoding" in headers and "content-length" in headers:
        response.headers["connection"] = "close"  # where this request ends is not sure
    story_of(scope).fail(error)
    return response


async def not_routed(request: Request, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException)
    return unrouted(request.scope, error)


def unrouted(scope: Scope, error: HTTPException) -> Response:
    """The same for what has not come as far as the routes."""
    where = f"{scope.get('method', 'GET')[:20]} {scope['path'][:MOST_ECHO]}"
    message = {
        HTTPStatus.NOT_FOUND: f"There is no {where} here.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{where}: another method is served here; see Allow.",
    }.get(HTTPStatus(error.status_code), error.detail)
    response = _envelope(error.status_code, _object(message, "invalid_request_error"))
    response.headers.update(error.headers or {})
    story_of(scope).end(f"http_{error.status_code}")
    return response


def unreadable(message: str) -> Response:
    """What is no HTTP request at all; it never reaches the app."""
    response = _envelope(400, _object(message, "invalid_request_error"))
    response.headers["x-request-id"] = uuid.uuid4().hex
    response.headers["connection"] = "close"
    return response


async def failed(request: Request, error: Exception) -> Response:
    """Our own fault. What went wrong goes to the log, not to the client."""
    response = _envelope(500, error_object(error))
    story_of(request.scope).fail(error)
    response.headers["connection"] = "close"  # uvicorn drops it after an exception
    return response
