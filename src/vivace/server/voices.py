"""OpenAI's routes for voices and consents, with what vLLM-Omni's clients send and read."""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from vivace.config import ServerConfig
from vivace.errors import InvalidRequest, NotFound, Unprocessable
from vivace.roster import Offer
from vivace.server.body import parse, read_body, read_bounded
from vivace.server.fields import Fields, bounded
from vivace.server.names import answers_to, find_model, find_voice, model_names
from vivace.server.order import tell_unknown
from vivace.server.replies import warned
from vivace.server.shelf import Shelf, voice_of
from vivace.server.story import admitted
from vivace.server.studio import Studio, check_taken, read_changes, read_making
from vivace.server.uploads import Upload, read_upload
from vivace.server.vendors import called
from vivace.server.workers import Workers
from vivace.voices.consents import Consents
from vivace.voices.kept import Consent, Kept
from vivace.voices.store import Making

if TYPE_CHECKING:
    from vivace.engine import Engine

FILE_TYPE: Final = "application/octet-stream"
_PAGE: Final = 100


def voice_routes(studio: Studio, config: ServerConfig, workers: Workers) -> list[BaseRoute]:
    """All of them."""
    routes, consents = _Voices(studio, config, workers), _Consents(studio, config, workers)
    voices, agreed = "/v1/audio/voices", "/v1/audio/voice_consents"
    return [
        Route(voices, routes.all),
        Route(voices, routes.create, methods=["POST"]),
        Route(f"{voices}/import", routes.take_in, methods=["POST"]),
        Route(f"{voices}/{{voice}}", routes.get),
        Route(f"{voices}/{{voice}}", routes.change, methods=["POST", "PATCH"]),
        Route(f"{voices}/{{voice}}", routes.delete, methods=["DELETE"]),
        Route(f"{voices}/{{voice}}/file", routes.export),
        Route(f"{voices}/{{voice}}/renew", routes.renew, methods=["POST"]),
        Route(agreed, consents.all),
        Route(agreed, consents.create, methods=["POST"]),
        Route(f"{agreed}/{{consent}}", consents.get),
        Route(f"{agreed}/{{consent}}", consents.rename, methods=["POST"]),
        Route(f"{agreed}/{{consent}}", consents.delete, methods=["DELETE"]),
    ]


def own_voice(studio: Studio, name: str) -> Kept:
    """The kept voice of that name. Raises NotFound, and Unprocessable for a checkpoint's own."""
    kept = studio.shelf.store.find(name)
    if kept is None and answers_to(name, studio.engine.voices):
        raise Unprocessable(f"{name!r} is the checkpoint's own voice.", param="voice")
    return kept or studio.shelf.store.get(name)


def read_new(fields: Fields, engine: "Engine", config: ServerConfig, shelf: Shelf) -> Making:
    """What the fields of a new voice say. Raises InvalidRequest and its children."""
    designed = fields.choice("type", ("audio_sample", "prompt")) == "prompt"
    prompt = fields.text("prompt")
    if designed and not (prompt and prompt.strip()):
        raise InvalidRequest("`prompt` is missing: it describes the voice.", param="prompt")
    if prompt is not None and not designed:
        raise Unprocessable('`prompt` goes with `type` "prompt".', param="prompt")
    bounded("prompt", prompt or "", config.limits.instruct_chars)
    fields.rename("script_hint", "ref_text")
    fields.rename("speaker_description", "description")
    consent = fields.text("consent")
    making = read_making(fields, engine, config)
    consented = _consent(shelf.consents, consent)
    return replace(making, consent=consented, prompt=(prompt or "").strip())


def read_consent(fields: Fields) -> tuple[str, str]:
    """Name and language of a new consent. Raises InvalidRequest."""
    name, language = fields.text("name"), fields.text("language")
    if name is None:
        raise InvalidRequest("`name` is missing.", param="name")
    if language is None:
        raise InvalidRequest("`language` is missing.", param="language")
    return name, language


def _consent(consents: Consents | None, said: str | None) -> Consent | None:
    """The consent that is kept under an id, or what a client says of one in words of its own.

    Raises NotFound for an id that there is none of.
    """
    if said is None:
        return None
    if said.startswith("cons_") and consents is not None:
        return consents.get(said)
    return Consent(id="", name="", text=said[:1000])


class _Voices:
    """One method per route."""

    def __init__(self, studio: Studio, config: ServerConfig, workers: Workers) -> None:
        self._studio, self._config, self._workers = studio, config, workers
        self._engine, self._shelf = studio.engine, studio.shelf

    async def all(self, request: Request) -> Response:
        """The checkpoint's voices and the kept ones; these again as vLLM-Omni lists them."""
        kept, own = self._shelf.kept(self._engine), self._engine.voices
        name = request.query_params.get("model")
        if name is not None and (model := self._model(name)) is not None:
            own, kept = model.voices, kept if model.spec.kind == "base" else []
        voices = [*map(asdict, own), *map(_shown, kept)]
        return JSONResponse({"voices": voices, "uploaded_voices": list(map(_uploaded, kept))})

    def _model(self, name: str) -> Offer | None:
        """The model of that name; None if it leaves open which. Raises NotFound."""
        models = self._engine.models
        names = model_names([m.model_id for m in models], self._config.model_aliases)
        meant = names[find_model(name, names)]
        return next((model for model in models if model.model_id == meant), None)

    async def get(self, request: Request) -> Response:
        """The voice that a name stands for."""
        name = request.path_params["voice"]
        engine, aliases = self._engine, self._config.voice_aliases
        found = find_voice(name, engine.voices, aliases, self._shelf.voices_of(engine))
        kept = self._shelf.kept_as(found)
        return JSONResponse(_shown(kept) if kept else asdict(found))

    async def create(self, request: Request) -> Response:
        """A new voice, from a clip."""
        _ = self._studio.base  # before the body is read
        config = self._config
        with admitted(request.scope):
            upload = await read_upload(request, config.limits.clip_bytes, config.body_s)
            kept, warnings = await self._workers.make(self._make, upload)
        voice = {"object": "audio.voice", **_shown(kept)}
        content = {**voice, "success": True, "voice": _uploaded(kept)}
        return JSONResponse(content, headers=warned(warnings))

    def _make(self, upload: Upload) -> tuple[Kept, list[str]]:
        fields, studio = upload.fields, self._studio
        making = read_new(fields, self._engine, self._config, self._shelf)
        tell_unknown(fields, strict=False)
        if making.prompt:
            return studio.design(making), fields.warnings
        file = upload.file("audio_sample")
        with called({"ref_audio": "audio_sample"}):
            kept, warnings = studio.make(making, file)
        return kept, [*fields.warnings, *warnings]

    async def change(self, request: Request) -> Response:
        """Other values in some of a kept voice's fields."""
        config = self._config
        fields = Fields(parse(await read_body(request, config.limits.body_bytes, config.body_s)))
        changes = read_changes(fields, self._engine, config)
        tell_unknown(fields, strict=True)
        kept = own_voice(self._studio, request.path_params["voice"])
        store = self._shelf.store
        changed = await self._workers.make(lambda: store.change(kept.card.id, **changes))
        return JSONResponse({"object": "audio.voice", **_shown(changed)})

    async def delete(self, request: Request) -> Response:
        """Forget a kept voice."""
        kept = own_voice(self._studio, request.path_params["voice"])
        await self._workers.make(self._shelf.store.remove, kept.card.id)
        content = {"id": kept.card.id, "object": "audio.voice", "deleted": True, "success": True}
        return JSONResponse(content)

    async def renew(self, request: Request) -> Response:
        """Make a kept voice anew for this server's checkpoint, of its clip."""
        kept = own_voice(self._studio, request.path_params["voice"])
        with admitted(request.scope):
            renewed = await self._workers.make(self._studio.renew, kept)
        return JSONResponse({"object": "audio.voice", **_shown(renewed)})

    async def export(self, request: Request) -> Response:
        """The one file that holds all of a kept voice."""
        kept = own_voice(self._studio, request.path_params["voice"])
        data = await self._workers.make(self._shelf.store.export, kept.card.id)
        name = f'attachment; filename="{kept.card.id}.safetensors"'
        return Response(data, media_type=FILE_TYPE, headers={"content-disposition": name})

    async def take_in(self, request: Request) -> Response:
        """Keep a voice from such a file, under its own name or the query's `name`."""
        store, kind = self._shelf.store, request.headers.get("content-type", FILE_TYPE)
        if kind.split(";")[0].strip().lower() != FILE_TYPE:
            raise InvalidRequest(f"A voice's file is sent as it is, as {FILE_TYPE}.")
        with admitted(request.scope):
            data = await read_bounded(request, store.most_bytes, self._config.body_s)
            name = request.query_params.get("name")
            check = partial(check_taken, self._studio, self._config)
            kept = await self._workers.make(store.take_in, data, name, check)
        return JSONResponse({"object": "audio.voice", **_shown(kept)})


class _Consents:
    """One method per route."""

    def __init__(self, studio: Studio, config: ServerConfig, workers: Workers) -> None:
        self._studio, self._config, self._workers = studio, config, workers

    @property
    def _kept(self) -> Consents:
        if self._studio.shelf.consents is None:
            raise Unprocessable("This server keeps no consents.", code="not_supported")
        return self._studio.shelf.consents

    async def all(self, request: Request) -> Response:
        """A page of them, oldest first."""
        consents = await self._workers.run(self._kept.all)
        page, more = _page(consents, request.query_params)
        ids = [consent.id for consent in page]
        ends = {"first_id": ids[0], "last_id": ids[-1]} if ids else {}
        data = list(map(_agreed, page))
        return JSONResponse({"object": "list", "data": data, "has_more": more, **ends})

    async def create(self, request: Request) -> Response:
        """Keep a recording."""
        kept, config = self._kept, self._config
        with admitted(request.scope):
            upload = await read_upload(request, config.limits.clip_bytes, config.body_s)
            name, language = read_consent(upload.fields)
            recording = upload.file("recording")
            consent = await self._workers.make(kept.add, name, language, recording)
        return JSONResponse(_agreed(consent))

    async def get(self, request: Request) -> Response:
        """One of them."""
        return JSONResponse(_agreed(self._kept.get(request.path_params["consent"])))

    async def rename(self, request: Request) -> Response:
        """Another name for one."""
        config = self._config
        fields = Fields(parse(await read_body(request, config.limits.body_bytes, config.body_s)))
        name = fields.text("name")
        tell_unknown(fields, strict=True)
        if name is None:
            raise InvalidRequest("`name` is missing.", param="name")
        id = request.path_params["consent"]
        return JSONResponse(_agreed(await self._workers.make(self._kept.rename, id, name)))

    async def delete(self, request: Request) -> Response:
        """Forget one."""
        id = request.path_params["consent"]
        await self._workers.make(self._kept.remove, id)
        return JSONResponse({"id": id, "object": "audio.voice_consent", "deleted": True})


def _page(consents: list[Consent], query: Mapping[str, str]) -> tuple[list[Consent], bool]:
    """Those after the query's `after`, at most `limit`; are there more?"""
    limit = query.get("limit", "20")
    if not (re.fullmatch("[0-9]{1,3}", limit) and 1 <= int(limit) <= _PAGE):
        raise Unprocessable(f"`limit` must be 1 to {_PAGE}.", param="limit")
    ids, after = [consent.id for consent in consents], query.get("after")
    if after is not None and after not in ids:
        raise NotFound(f"There is no consent {after[:64]!r} here.", param="after")
    rest = consents[ids.index(after) + 1 :] if after is not None else consents
    return rest[: int(limit)], len(rest) > int(limit)


def _shown(kept: Kept) -> dict[str, object]:
    """A kept voice among the voices."""
    card = kept.card
    more = {"prompt": card.prompt} if card.prompt else {}
    return {
        **asdict(voice_of(kept)),
        "created_at": int(card.created_s),
        "type": "prompt" if card.prompt else "audio_sample",
        "description": card.description,
        "instructions": card.instruct,
        "seed": card.seed,
        "mode": "x_vector" if kept.clone.ref_codes is None else "continued",
        "content": card.content,
        "consent": card.consent.id or card.consent.text if card.consent else None,
        **more,
    }


def _uploaded(kept: Kept) -> dict[str, object]:
    """The same as vLLM-Omni shows it."""
    card = kept.card
    return {
        "name": card.name,
        "consent": card.consent.id or card.consent.text if card.consent else "",
        "created_at": int(card.created_s),
        "file_size": card.clip_bytes,
        "mime_type": "audio/flac",
        "ref_text": card.ref_text or None,
        "speaker_description": card.description or None,
    }


def _agreed(consent: Consent) -> dict[str, object]:
    return {
        "id": consent.id,
        "object": "audio.voice_consent",
        "name": consent.name,
        "language": consent.language,
        "created_at": consent.created_s,
    }
