"""A request's body: bounded, UTF-8, JSON, one object, no half characters."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from vivace.errors import InvalidRequest, TooLarge
from vivace.text.clean import check_text

LONG_BODY: Final = 8_192  # bytes that are parsed and checked in about a millisecond
_JSON_TYPE = re.compile(r"application/(json|[\w.+-]+\+json)\s*(;.*)?", re.IGNORECASE)
_OTHER_CHARSET = re.compile(r"charset\s*=\s*\"?(?!utf-?8\b)[\w-]", re.IGNORECASE)


async def read_body(request: Request, limit: int, within_s: float) -> bytes:
    """The bytes of a request that says it is JSON.

    Raises:
        TooLarge: More than `limit` bytes; the rest is not read.
        InvalidRequest: The client left in the middle.
        HTTPException: 415, for another content type or encoding; 408, for a body that did not
            come in time.
    """
    _check_headers(request.headers)
    return await read_bounded(request, limit, within_s)


async def read_bounded(request: Request, limit: int, within_s: float) -> bytes:
    """The bytes of any request, whatever it says they are. Raises as `read_body` does."""
    try:
        async with asyncio.timeout(within_s):
            return await _read(request, limit)
    except TimeoutError:
        raise HTTPException(408, f"The body did not come within {within_s:g} s.") from None


def parse(raw: bytes) -> dict[str, object]:
    """One JSON object in UTF-8 from its bytes; anything else is an InvalidRequest.

    NaN, Infinity and 1e400 pass here as floats: the field they stand in refuses them by its name.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not UTF-8 (byte {error.start}).") from None
    return parse_object(text, "The body", '{"input": "Hello."}')


def parse_object(
    text: str, what: str, example: str, *, halves: str | None = None
) -> dict[str, object]:
    """One JSON object; anything else is an InvalidRequest that says `what` it is and shows one.

    The field named by `halves` may hold half a surrogate pair: its other half may be still to come.
    """
    try:
        body = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise InvalidRequest(f"{what} is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"{what} is not JSON: {error}.") from None
    except ValueError:
        raise InvalidRequest(f"{what} holds a number of thousands of digits.") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"{what} must be a JSON object, such as {example}.")
    for name, value in body.items():
        for string in _strings([name] if name == halves else [name, value]):
            check_text(string, name)
    return body


def _check_headers(headers: Mapping[str, str]) -> None:
    encoding = headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise HTTPException(415, "Compressed bodies are not accepted: send the JSON as it is.")
    kind = headers.get("content-type", "application/json")
    if not _JSON_TYPE.fullmatch(kind.strip()):
        raise HTTPException(415, "The body must be JSON: send Content-Type: application/json.")
    if _OTHER_CHARSET.search(kind):
        raise HTTPException(415, "The body must be UTF-8.")


async def _read(request: Request, limit: int) -> bytes:
    """The body's bytes; stops at the limit, whether its length was announced or not."""
    refusal = TooLarge(f"The body is over the limit of {limit:,} bytes.", code="body_too_large")
    if int(request.headers.get("content-length", 0)) > limit:
        raise refusal
    raw = bytearray()
    try:
        async for piece in request.stream():
            raw += piece
            if len(raw) > limit:
                raise refusal
    except ClientDisconnect:
        raise InvalidRequest("The client left before its request was read.") from None
    return bytes(raw)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object's members; two of one name would leave it to chance which one counts."""
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise InvalidRequest(f"`{name[:64]}` is given twice.", param=name)
        members[name] = value
    return members


def _strings(value: object) -> Iterator[str]:
    """Every string in a JSON value. A stack, since the value may be deeper than Python's own."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend([*item, *item.values()])
