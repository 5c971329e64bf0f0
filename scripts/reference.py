"""Writes docs/configuration.md, of the config's records, and docs/api.md, of the routes."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from vivace.config import PROFILES, EngineConfig, Limits, Profile, ServerConfig, Start
from vivace.engine import Engine
from vivace.server.app import create_app
from vivace.settings import Setting, kind_of, settings
from vivace.types import Sampling

DOCS = Path(__file__).resolve().parent.parent / "docs"
CONFIGURATION = """\
# Configuration

<!-- Made by scripts/reference.py. Change what it is made of. -->

Every setting has one name: `max_sessions = 16` in a TOML file, `VIVACE_MAX_SESSIONS` in the
environment, `--max-sessions` as a flag; what comes later in this list counts more.
[Deployment](deployment.md#settings) says how they meet, `vivace config` prints what is in
effect and where it came from. Yes or no is `--trim` or `--no-trim`. Names that end in `_s` are
seconds, in `_ms` milliseconds, in `_mb` mebibytes."""
API = """\
# API reference

<!-- Made by scripts/reference.py. Change what it is made of. -->

All HTTP routes, from the server's own `GET /openapi.json`. What the fields mean is in
[HTTP](http.md) and in the [guides](integrations/openai.md); messages on sockets are in
[Socket](socket.md). `null` is as good as absent everywhere."""
SECTIONS = {
    Start: "The command",
    EngineConfig: "The engine",
    ServerConfig: "The HTTP edge",
    Limits: "Limits of a request",
    Profile: "Numbers of a profile",
}

Schema = dict[str, Any]


def configuration() -> str:
    """Every setting with its type, default and words."""
    lines = [CONFIGURATION]
    for record, title in SECTIONS.items():
        own = [setting for setting in settings().values() if setting.record is record]
        lines += ["", f"## {title}", ""]
        if record is Profile:
            lines += [*profiles(), ""]
        lines += ["| setting | default | type | what it is |", "|---|---|---|---|", *map(_row, own)]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    kind = kind_of(setting).removeprefix("a ").replace("string", "text")
    name, own = f"`{setting.name}`", "--" + setting.name.replace("_", "-")
    if setting.secret:
        name += ", no flag"
    elif setting.flag != own:
        name += f", flag `{setting.flag}`"
    return f"| {name} | {_default(setting)} | {kind} | {_cell(setting.doc.rstrip('.'))} |"


def _default(setting: Setting) -> str:
    if setting.default is None or (setting.many and not setting.default):
        return "none"
    shown = setting.default
    words = json.dumps(shown) if isinstance(shown, bool) else f"{shown}"
    return f"`{words.removesuffix('.0')}`"


def profiles() -> list[str]:
    """What the profiles say, where they differ."""
    names = ", ".join(f"`{name}`" for name in PROFILES)
    base = Profile()
    changed = [
        f"`{name}` has "
        + ", ".join(
            f"`{field} = {getattr(profile, field):g}`"
            for field in Profile.__dataclass_fields__
            if getattr(profile, field) != getattr(base, field)
        )
        for name, profile in PROFILES.items()
        if profile != base
    ]
    return [
        f"`profile` chooses one of {names}.",
        "[Scheduling](scheduling.md#the-numbers-of-a-profile) says what the numbers do.",
        f"The defaults are those of `balanced`; {'; '.join(changed)}.",
    ]


def api() -> str:
    """Every route with its fields and answers."""
    document = with_clips(described("custom_voice"), described("base"))
    lines = [API]
    operations = [
        (way["tags"][0], method, path, way)
        for path, ways in document["paths"].items()
        for method, way in ways.items()
    ]
    for tag in ("vivace", "ElevenLabs", "Cartesia"):
        own = [operation for operation in operations if operation[0] == tag]
        lines += ["", f"## {tag}", "", "| route | what it does | statuses |", "|---|---|---|"]
        lines += [_route(method, path, way) for _, method, path, way in own]
        for _, method, path, way in own:
            lines += _fields(method, path, way)
    lines += ["", "## Statuses", "", "| status | |", "|---|---|"]
    refusals = document["components"]["responses"]
    lines += [f"| {status} | {seen['description']} |" for status, seen in refusals.items()]
    return "\n".join(lines) + "\n"


def with_clips(one: Any, base: Any) -> Any:
    """A document; what it refuses and that of a base checkpoint takes is told as the latter's."""
    if not isinstance(one, dict) or not isinstance(base, dict):
        return one
    if one.get("type") == "null" and base.get("type") != "null":
        return base | {"base_only": True}
    return {name: with_clips(inside, base.get(name)) for name, inside in one.items()}


def described(kind: str) -> Schema:
    """The document of a server with nothing loaded, where names are the checkpoint's own."""
    engine = SimpleNamespace(
        model_id="vivace",
        spec=SimpleNamespace(kind=kind, size="1b7"),
        voices=[],
        languages=[],
        defaults=Sampling(),
    )
    engine.models = [engine]
    app = create_app(cast(Engine, engine))
    return cast(Schema, json.loads(asyncio.run(_got(app, "/openapi.json"))))


async def _got(app: Any, path: str) -> bytes:
    """The body of a GET, without a network."""
    body = bytearray()

    async def receive() -> Schema:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Schema) -> None:
        body.extend(message.get("body", b""))

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return bytes(body)


def _route(method: str, path: str, way: Schema) -> str:
    statuses = ", ".join(sorted(way["responses"]))
    return f"| `{method.upper()} {path}` | {_cell(way['summary'])} | {statuses} |"


def _fields(method: str, path: str, way: Schema) -> list[str]:
    """The table of a body's fields, for a route that has one."""
    if "requestBody" not in way:
        return []
    ((kind, content),) = way["requestBody"]["content"].items()
    schema = content["schema"]
    if "properties" not in schema:
        return ["", f"### {method.upper()} {path}", "", f"The file itself, as `{kind}`."]
    if "items" in schema["properties"]:
        schema = schema | {"properties": {"items": schema["properties"]["items"]}}
    rows = [
        f"| `{name}` | {_kind(field)} |"
        for name, field in _flat(schema, set(schema.get("required", ())))
    ]
    query = [
        f"In the address: `{parameter['name']}`, {_kind(parameter['schema'])}."
        for parameter in way["parameters"]
        if parameter["in"] == "query"
    ]
    return [
        *["", f"### {method.upper()} {path}", "", *query],
        *[""] * bool(query),
        *(["A form, `multipart/form-data`.", ""] if kind == "multipart/form-data" else []),
        *["| field | values |", "|---|---|", *rows],
    ]


def _flat(schema: Schema, needed: set[str], before: str = "") -> list[tuple[str, Schema]]:
    """Fields with those of the objects inside, what must be there first."""
    found = []
    for name, field in sorted(schema["properties"].items(), key=lambda item: item[0] not in needed):
        found.append((before + name, field | ({"needed": True} if name in needed else {})))
        if "properties" in field:
            found += _flat(field, set(), f"{before}{name}.")
    return found


def _kind(field: Schema) -> str:
    """A field's schema in words."""
    kinds = field.get("type", "any value")
    kinds = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else [kinds]
    kind = " or ".join(kinds) or "null"
    words = "refused" if kind == "null" else str(kind)
    words = "a file" if field.get("format") == "binary" else words
    if kind == "array":
        words = f"{field['minItems']} to {field['maxItems']} objects with the fields of one request"
        words += "; what stands beside them is for each that does not say"
    if "enum" in field:
        words = ", ".join(f"`{value}`" for value in field["enum"] if value is not None)
    if "maximum" in field:
        above = "exclusiveMinimum" in field
        low = field["exclusiveMinimum" if above else "minimum"]
        words += f", {f'above {low:g}' if above else f'{low:g}'} to {_number(field['maximum'])}"
    if "maxLength" in field:
        words += f", up to {field['maxLength']:,} characters"
    if field.get("base_only"):
        words += "; a base checkpoint takes it, others refuse it"
    return words + (", must be there" if field.get("needed") else "")


def _number(value: float) -> str:
    """Bounds of counters as powers."""
    power = int(value + 1).bit_length() - 1
    return f"2^{power} - 1" if power > 20 and value == 2**power - 1 else f"{value:g}"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


PAGES = {"configuration.md": configuration, "api.md": api}


def main() -> None:
    """Write them."""
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
