"""Forms with files in them: bounded in bytes and parts, each field taken once."""

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from vivace.errors import InvalidRequest, Unprocessable
from vivace.server.body import parse, read_bounded
from vivace.server.fields import Fields
from vivace.text.clean import check_text

_FORM = re.compile(r"multipart/form-data\s*;.*boundary=", re.IGNORECASE)
_JSON = re.compile(r"application/json\s*(;.*)?", re.IGNORECASE)
_SLICE: Final = 1 << 16
_MOST_FILES: Final = 8
_MOST_FIELDS: Final = 64
_FIELD_BYTES: Final = 1 << 16
_BESIDE: Final = 1 << 18  # bytes that a form may have beside its files


@dataclass(frozen=True, slots=True)
class Upload:
    """A form's fields, as strings, and its files by the name of their field."""

    fields: Fields
    files: dict[str, list[bytes]]

    def file(self, name: str) -> bytes:
        """The one file of that name. Raises InvalidRequest if there is none, or there are more."""
        found = self.files.pop(name, [])
        if not found:
            raise InvalidRequest(f"`{name}` is missing: it is an audio file.", param=name)
        if len(found) > 1:
            raise Unprocessable(f"`{name}` must be one file; got {len(found)}.", param=name)
        return found[0]


async def read_upload(request: Request, file_bytes: int, within_s: float) -> Upload:
    """The form that a request sends, or the JSON object in its place.

    Raises:
        TooLarge: A body of more than `file_bytes` and what goes with a file.
        InvalidRequest: No form at all; a field that is there twice.
        HTTPException: 415, for another content type; 408, for a body that came too slowly.
    """
    kind = request.headers.get("content-type", "")
    if _JSON.fullmatch(kind):
        return Upload(Fields(parse(await read_bounded(request, _BESIDE, within_s))), {})
    if not _FORM.match(kind):
        raise HTTPException(415, "The body must be multipart/form-data.")
    raw = await read_bounded(request, file_bytes + _BESIDE, within_s)
    return await _parsed(request, raw)


async def _parsed(request: Request, raw: bytes) -> Upload:
    async def body() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(raw), _SLICE):
            yield raw[start : start + _SLICE]
            await asyncio.sleep(0)  # others want to be served meanwhile

    parser = MultiPartParser(
        request.headers,
        body(),
        max_files=_MOST_FILES,
        max_fields=_MOST_FIELDS,
        max_part_size=_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError, UnicodeDecodeError, KeyError) as error:
        raise InvalidRequest(f"The form cannot be read: {error or type(error).__name__}.") from None
    try:
        return await _sorted(form)
    finally:
        await form.close()


async def _sorted(form: FormData) -> Upload:
    fields: dict[str, object] = {}
    files: dict[str, list[bytes]] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files.setdefault(name, []).append(await value.read())
        elif name in fields:
            raise InvalidRequest(f"`{name[:64]}` is given twice.", param=name)
        else:
            check_text(value, name)
            fields[name] = value
    return Upload(Fields(fields), files)
