"""What the HTTP routes take and give, as OpenAPI, read off the routes and off the code they run.

A body's schema is what its own reader asks for: it is called with fields that write down each
question. So nothing is said twice, and a field that is read is a field that is described.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, Final, NoReturn, Self

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from vivace.audio.encode import FORMATS
from vivace.errors import OUTCOMES, InvalidRequest
from vivace.server import cartesia, elevenlabs, sse, vendor_voices, voices
from vivace.server.batch import Batch
from vivace.server.fields import INT_MAX, Fields
from vivace.server.gate import FREE, SAFE
from vivace.server.order import place_order
from vivace.server.speaking import Speaking
from vivace.server.studio import read_changes, read_making
from vivace.server.vendors import Edge

Schema = dict[str, Any]

_PARAMETER: Final = re.compile(r"\{(\w+)(:\w+)?\}")
_TAGS: Final = (("/v1/text-to-speech|/v1/voices|/v2/", "ElevenLabs"), ("/tts/|/voices", "Cartesia"))
_FROM_STARLETTE: Final = {408: "The body did not come in time.", 415: "Not JSON in UTF-8."}


class Noted(Fields):
    """Fields that write down what is asked of them, as the properties of a JSON object."""

    def __init__(self, body: Mapping[str, object]) -> None:
        super().__init__(body)
        self.properties: dict[str, Schema] = {}

    def _note(self, name: str, kind: str, **more: object) -> None:
        self.properties.setdefault(name, {"type": [kind, "null"], **more})

    def take(self, name: str) -> object | None:
        """A value of any type."""
        self.properties.setdefault(name, {})
        return super().take(name)

    def text(self, name: str) -> str | None:
        """A string."""
        self._note(name, "string")
        return super().text(name)

    def flag(self, name: str) -> bool | None:
        """A boolean."""
        self._note(name, "boolean")
        return super().flag(name)

    def flag_text(self, name: str) -> bool | None:
        """The same, as forms write it."""
        self._note(name, "boolean")
        return super().flag_text(name)

    def whole(self, name: str, low: int, high: int = INT_MAX) -> int | None:
        """An integer."""
        self._note(name, "integer", minimum=low, maximum=high)
        return super().whole(name, low, high)

    def number(self, name: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A number."""
        least = "exclusiveMinimum" if above else "minimum"
        self._note(name, "number", **{least: low, "maximum": high})
        return super().number(name, low, high, above=above)

    def choice(self, name: str, served: Collection[str]) -> str | None:
        """One of a few words."""
        self._note(name, "string", enum=[*served, None])
        return super().choice(name, served)

    def refuse(self, name: str, why: str) -> None:
        """A field that may only be null."""
        self.properties.setdefault(name, {"type": "null", "description": f"Refused: {why}"})
        super().refuse(name, why)

    def inner(self, name: str) -> Self:
        """An object inside."""
        inside = super().inner(name)
        self.properties[name] = {"type": ["object", "null"], "properties": inside.properties}
        return inside


Read = Callable[[Edge, Fields], object]


def _place(edge: Edge, fields: Fields) -> object:
    return place_order(fields, edge.engine, edge.config, edge.shelf, strict=False)


def _cartesia(fields: Fields, *, sse: bool) -> object:
    return (cartesia.Events(fields) if sse else None), cartesia.placed(fields, sse=sse)


def _elevenlabs(edge: Edge, fields: Fields) -> object:
    return elevenlabs.placed(fields, "", elevenlabs.sound_of(None))


def _new_voice(edge: Edge, fields: Fields) -> object:
    return voices.read_new(fields, edge.engine, edge.config, edge.shelf)


def _elevenlabs_voice(edge: Edge, fields: Fields) -> object:
    vendor_voices.refuse_noise(fields)
    return vendor_voices.read_labels(fields), read_making(fields, edge.engine, edge.config)


def _cartesia_voice(edge: Edge, fields: Fields) -> object:
    vendor_voices.refuse_other_voices(fields)
    return read_making(fields, edge.engine, edge.config)


def _changes(edge: Edge, fields: Fields) -> object:
    return read_changes(fields, edge.engine, edge.config)


_BY_HAND: Final[Mapping[str, Schema]] = {
    "voice": {"type": ["string", "object", "null"]},  # a name, or an object that holds one
    "speaker": {"type": ["string", "object", "null"]},
    "seed": {"type": ["integer", "null"]},
    "speed": {"type": ["number", "null"]},
}

# By path: the field that must be there, and who reads the body.
_BODIES: Final[Mapping[str, tuple[str, Read]]] = {
    "/v1/audio/speech": ("input", _place),
    "/v1/text-to-speech/{voice}": ("text", _elevenlabs),
    "/v1/text-to-speech/{voice}/stream": ("text", _elevenlabs),
    "/tts/bytes": ("transcript", lambda edge, fields: _cartesia(fields, sse=False)),
    "/tts/sse": ("transcript", lambda edge, fields: _cartesia(fields, sse=True)),
}
# Forms: the fields that must be there, the file among them, and who reads the others.
_Form = tuple[tuple[str, ...], str | None, Callable[[Edge, Fields], object]]
_FORMS: Final[Mapping[str, _Form]] = {
    "/v1/audio/voices": (("name",), "audio_sample", _new_voice),
    "/v1/audio/voice_consents": (
        ("name", "language"),
        "recording",
        lambda edge, fields: voices.read_consent(fields),
    ),
    "/v1/voices/add": (("name",), "files", _elevenlabs_voice),
    "/v1/voices/{voice}/edit": ((), None, _elevenlabs_voice),
    "/voices/clone": (("name",), "clip", _cartesia_voice),
}
# Objects none of whose fields must be there.
_CHANGES: Final = {
    "/v1/audio/voices/{voice}": _changes,
    "/v1/audio/voice_consents/{consent}": lambda edge, fields: fields.text("name"),
    "/voices/{voice}": _changes,
}
_FILES: Final = {"/v1/audio/voices/import": voices.FILE_TYPE}
_QUERIES: Final[Mapping[str, Schema]] = {
    "/v1/text-to-speech/{voice}": {"output_format": {"enum": list(elevenlabs.SOUNDS)}},
    "/v1/text-to-speech/{voice}/stream": {"output_format": {"enum": list(elevenlabs.SOUNDS)}},
    "/voices": {"starting_after": {"type": "string"}},
    "/v1/audio/voices/import": {"name": {"type": "string"}},
}
_PAGES: Final[Mapping[str, Schema]] = {
    "/v1/audio/voice_consents": {
        "after": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    },
}


class Described:
    """`GET /openapi.json`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def get(self, request: Request) -> Response:
        """This document."""
        return JSONResponse(document(request.app.routes, self._edge))


def document(routes: Iterable[BaseRoute], edge: Edge) -> Schema:
    """OpenAPI 3.1 of all HTTP routes; sockets and files are none of its business."""
    paths: dict[str, dict[str, Schema]] = {}
    for route in routes:
        if isinstance(route, Route):
            path = _PARAMETER.sub(r"{\1}", route.path)
            for method in sorted((route.methods or set()) - {"HEAD"}):
                paths.setdefault(path, {})[method.lower()] = _operation(route, method, path, edge)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vivace",
            "version": version("vivace"),
            "summary": "Text in, speech out while it is being made.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}, "responses": _refusals()},
    }


def _operation(route: Route, method: str, path: str, edge: Edge) -> Schema:
    summary = (inspect.getdoc(route.endpoint) or "").partition("\n")[0]
    gives = inspect.signature(route.endpoint).return_annotation
    takes = method in ("POST", "PATCH") and gives is not NoReturn
    body = _body(path, edge) if takes else None
    slug = re.sub(r"\W+", "_", path).strip("_") or "root"
    return {
        "operationId": f"{method.lower()}_{slug}",
        "summary": summary,
        "tags": [next((tag for start, tag in _TAGS if re.match(start, path)), "vivace")],
        "parameters": _parameters(path, method),
        **({"requestBody": body} if body else {}),
        "responses": _responses(path, method, gives, with_body=body is not None),
    }


def _parameters(path: str, method: str) -> list[Schema]:
    queries = {**_QUERIES.get(path, {}), **(_PAGES.get(path, {}) if method == "GET" else {})}
    return [
        *(
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name, _ in _PARAMETER.findall(path)
        ),
        *({"name": name, "in": "query", "schema": s} for name, s in queries.items()),
    ]


def _body(path: str, edge: Edge) -> Schema | None:
    if path == "/v1/audio/speech/batch":
        schema = _batch(edge)
    elif path in _BODIES:
        schema = _fields(edge, *_BODIES[path])
    elif path in _CHANGES:
        schema = _noted(edge, _CHANGES[path])
    elif path in _FORMS:
        return _content("multipart/form-data", _form(edge, *_FORMS[path]))
    elif path in _FILES:
        return _content(_FILES[path], _BINARY)
    else:
        return None
    return _content("application/json", schema)


def _content(kind: str, schema: Schema) -> Schema:
    return {"required": True, "content": {kind: {"schema": schema}}}


def _noted(edge: Edge, read: Callable[[Edge, Fields], object]) -> Schema:
    """An object with the fields that a reader asks for."""
    fields = Noted({"name": "Anna"})
    with suppress(InvalidRequest):
        read(edge, fields)
    return {"type": "object", "properties": fields.properties}


def _form(edge: Edge, needed: tuple[str, ...], file: str | None, read: Read) -> Schema:
    """The same with a file beside them, as a form."""
    schema = _noted(edge, read)
    if file is not None:
        schema["properties"][file] = _BINARY
        needed = (*needed, file)
    return {**schema, "required": list(needed)}


def _fields(edge: Edge, needed: str, read: Read) -> Schema:
    """What a reader asks for, whatever the kind of the checkpoint is."""
    properties: dict[str, Schema] = {}
    for seen in (edge, replace(edge, engine=_other(edge))):
        # What turns a reader aside: a container that has fields of its own, no instructions.
        for aside in ({}, {"instructions": "Calm.", "output_format": {"container": "mp3"}}):
            fields = Noted({needed: "Hello.", **aside})
            with suppress(InvalidRequest):  # what was asked until then is noted
                read(seen, fields)
            properties = _merged(properties, fields.properties)
    _fill(properties)
    properties[needed] = {
        "type": "string",
        "minLength": 1,
        "maxLength": edge.config.limits.text_chars,
    }
    return {"type": "object", "required": [needed], "properties": properties}


def _fill(properties: dict[str, Schema]) -> None:
    """Name what readers take as it comes: they check those by hand, or hand them on to ours."""
    for name, schema in properties.items():
        if not schema:
            schema.update(_BY_HAND.get(name, {}))
        _fill(schema.get("properties", {}))


def _merged(one: dict[str, Schema], other: dict[str, Schema]) -> dict[str, Schema]:
    """All properties of both, inner ones too."""
    both = {**other, **one}
    for name in one.keys() & other.keys():
        if "properties" in one[name]:
            inside = _merged(one[name]["properties"], other[name]["properties"])
            both[name] = {**one[name], "properties": inside}
    return both


def _other(edge: Edge) -> Any:
    """An engine to the reader's eyes, with the kind of checkpoint that takes most fields."""
    engine = edge.engine
    other = SimpleNamespace(
        model_id=engine.model_id,
        spec=SimpleNamespace(kind="custom_voice", size="1b7"),
        voices=engine.voices,
        languages=engine.languages,
        defaults=engine.defaults,
    )
    other.models = [other]
    return other


def _batch(edge: Edge) -> Schema:
    """Items are orders, and what stands beside them is for each that does not say."""
    item = _fields(edge, *_BODIES["/v1/audio/speech"])
    most = edge.config.limits.batch_items
    items = {"type": "array", "minItems": 1, "maxItems": most, "items": item}
    shared = {name: schema for name, schema in item["properties"].items() if name != "input"}
    return {"type": "object", "required": ["items"], "properties": {"items": items, **shared}}


def _responses(path: str, method: str, gives: object, *, with_body: bool) -> dict[str, Schema]:
    statuses = {500} | _of_the_gate(path, method)
    if "{" in path or "voice" in path:  # there may be none of that name, or nowhere to keep any
        statuses |= {404, 422, 503}
    if with_body:
        statuses |= {kind.status for kind in OUTCOMES.values()} | set(_FROM_STARLETTE)
    if gives is NoReturn:
        statuses.add(422)
    refusals = {str(s): {"$ref": f"#/components/responses/{s}"} for s in sorted(statuses)}
    if gives is NoReturn:
        return refusals
    probe = {"503": _given("No.", "application/json")} if path in FREE else {}
    return {"200": _success(path, gives), **probe, **refusals}


def _of_the_gate(path: str, method: str) -> set[int]:
    """What may be met before the route: no key where keys are on, a page of another site."""
    return (set() if path in FREE else {401}) | (set() if method in SAFE else {403})


def _success(path: str, gives: object) -> Schema:
    if gives is Speaking:
        kinds = {form.media_type for form in FORMATS.values()} | {sse.MEDIA_TYPE}
        kinds = {sse.MEDIA_TYPE} if path == "/tts/sse" else kinds
        return _given("The speech, while it is being made.", *sorted(kinds))
    if gives is Batch:
        return _given("The speech of all items, in base64.", "application/json")
    others = {"/": ("application/json", "text/html"), "/metrics": ("text/plain",)}
    return _given("As said.", *others.get(path, ("application/json",)))


def _given(words: str, *kinds: str) -> Schema:
    as_text = {"application/json": {}, "text/html": {"type": "string"}}
    return {
        "description": words,
        "content": {kind: {"schema": as_text.get(kind, _BINARY)} for kind in kinds},
    }


_BINARY: Final[Schema] = {"type": "string", "format": "binary"}
_WORDS: Final = {"type": ["string", "null"]}
_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"enum": sorted({kind.type for kind in OUTCOMES.values()})},
                "param": _WORDS,
                "code": _WORDS,
            },
        }
    },
}


def _refusals() -> dict[str, Schema]:
    """One response a status; the words are those of the errors' own docstrings."""
    words = dict(_FROM_STARLETTE)
    for kind, seen in OUTCOMES.items():
        words.setdefault(seen.status, (kind.__doc__ or "").partition("\n")[0])
    schema = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        str(status): {"description": words[status], "content": schema} for status in sorted(words)
    }
