"""Voices that are made, changed and deleted in ElevenLabs' and Cartesia's words."""

import json
from dataclasses import replace
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from vivace.errors import Unprocessable
from vivace.server.body import parse, read_body
from vivace.server.fields import Fields
from vivace.server.names import language_code
from vivace.server.order import tell_unknown
from vivace.server.replies import warned
from vivace.server.shelf import voice_of
from vivace.server.story import admitted
from vivace.server.studio import Studio, read_changes, read_making
from vivace.server.uploads import Upload, read_upload
from vivace.server.vendors import Edge, called
from vivace.server.voices import own_voice
from vivace.types import Voice
from vivace.voices.kept import Kept

_MOST_LABELS = 20


def vendor_voice_routes(edge: Edge, studio: Studio) -> list[BaseRoute]:
    """Those of both vendors; the routes that only read are with the others of each."""
    eleven, cartesia = _ElevenLabs(edge, studio), _Cartesia(edge, studio)
    return [
        Route("/v1/voices/add", eleven.add, methods=["POST"]),
        Route("/v1/voices/{voice}/edit", eleven.edit, methods=["POST"]),
        Route("/v1/voices/{voice}", eleven.delete, methods=["DELETE"]),
        Route("/voices/clone", cartesia.clone, methods=["POST"]),
        Route("/voices/{voice}", cartesia.change, methods=["PATCH"]),
        Route("/voices/{voice}", cartesia.delete, methods=["DELETE"]),
    ]


def elevenlabs_voice(voice: Voice, kept: Kept | None) -> dict[str, object]:
    """A voice as ElevenLabs shows it."""
    labels = {"language": voice.language} if voice.language else {}
    own: dict[str, object] = {"voice_id": voice.id, "name": voice.name, "category": "premade"}
    if kept is not None:
        labels = {**labels, **kept.card.labels}
        own |= {"category": "cloned", "description": kept.card.description}
    return own | {"labels": labels}


def cartesia_voice(voice: Voice, kept: Kept | None) -> dict[str, object]:
    """A voice as Cartesia shows it."""
    own = kept is not None
    about = kept.card.description if kept else f"The checkpoint's voice {voice.name}."
    made = datetime.fromtimestamp(kept.card.created_s if kept else 0, UTC)
    return {
        "id": voice.id,
        "name": voice.name,
        "tagline": "",
        "description": about,
        "language": language_code(voice.language) or "en",
        "locales": [],
        "access": "private" if own else "public",
        "visibility": "owner" if own else "all",
        "is_owner": own,
        "is_public": not own,
        "user_id": "",
        "created_at": made.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }


class _Vendor:
    """What both do."""

    def __init__(self, edge: Edge, studio: Studio) -> None:
        self._edge, self._studio = edge, studio

    async def _upload(self, request: Request) -> Upload:
        _ = self._studio.base  # before the body is read
        config = self._edge.config
        return await read_upload(request, config.limits.clip_bytes, config.body_s)

    async def _make(self, upload: Upload, file: str) -> tuple[Kept, list[str]]:
        """A voice from the form's clip; fields of ours that the vendor lacks are let through."""
        edge, fields = self._edge, upload.fields
        labels = read_labels(fields)
        making = replace(read_making(fields, edge.engine, edge.config), labels=labels)
        tell_unknown(fields, strict=False)
        clip = upload.file(file)

        def make() -> tuple[Kept, list[str]]:
            with called({"ref_audio": file}):
                return self._studio.make(making, clip)

        kept, warnings = await edge.workers.make(make)
        return kept, [*fields.warnings, *warnings]

    async def _change(self, request: Request, fields: Fields) -> Kept:
        edge, store = self._edge, self._studio.shelf.store
        changes = read_changes(fields, edge.engine, edge.config)
        if labels := read_labels(fields):
            changes["labels"] = labels
        tell_unknown(fields, strict=False)
        id = own_voice(self._studio, request.path_params["voice"]).card.id
        return await edge.workers.make(lambda: store.change(id, **changes))

    async def _delete(self, request: Request) -> None:
        id = own_voice(self._studio, request.path_params["voice"]).card.id
        await self._edge.workers.make(self._studio.shelf.store.remove, id)


class _ElevenLabs(_Vendor):
    """One method per route."""

    async def add(self, request: Request) -> Response:
        """A voice from one file."""
        with admitted(request.scope):
            upload = await self._upload(request)
            refuse_noise(upload.fields)
            kept, warnings = await self._make(upload, "files")
        content = {"voice_id": kept.card.id, "requires_verification": False}
        return JSONResponse(content, headers=warned(warnings))

    async def edit(self, request: Request) -> Response:
        """Another name, description or labels; not another clip."""
        config = self._edge.config
        upload = await read_upload(request, config.limits.clip_bytes, config.body_s)
        refuse_noise(upload.fields)
        if upload.files:
            raise Unprocessable("`files`: a voice keeps its clip; add a new voice.", param="files")
        upload.fields.flag_text("moderate_metadata")  # nothing is moderated here
        await self._change(request, upload.fields)
        return JSONResponse({"status": "ok"}, headers=warned(upload.fields.warnings))

    async def delete(self, request: Request) -> Response:
        """Forget a voice."""
        await self._delete(request)
        return JSONResponse({"status": "ok"})


class _Cartesia(_Vendor):
    """One method per route."""

    async def clone(self, request: Request) -> Response:
        """A voice from one clip."""
        with admitted(request.scope):
            upload = await self._upload(request)
            refuse_other_voices(upload.fields)
            kept, warnings = await self._make(upload, "clip")
        return JSONResponse(self._shown(kept), headers=warned(warnings))

    async def change(self, request: Request) -> Response:
        """Another name or description."""
        config = self._edge.config
        fields = Fields(parse(await read_body(request, config.limits.body_bytes, config.body_s)))
        kept = await self._change(request, fields)
        return JSONResponse(self._shown(kept), headers=warned(fields.warnings))

    async def delete(self, request: Request) -> Response:
        """Forget a voice."""
        await self._delete(request)
        return Response(status_code=204)

    def _shown(self, kept: Kept) -> dict[str, object]:
        return cartesia_voice(voice_of(kept), kept)


def refuse_other_voices(fields: Fields) -> None:
    """A voice is its clip."""
    for name in ("base_voice_id", "accent"):
        fields.refuse(name, "a voice here is its clip and nothing else.")


def refuse_noise(fields: Fields) -> None:
    """Nothing is taken out of clips."""
    if fields.flag_text("remove_background_noise"):
        raise Unprocessable(
            "`remove_background_noise`: clips are taken as they are.",
            param="remove_background_noise",
        )


def read_labels(fields: Fields) -> dict[str, str]:
    """ElevenLabs' labels, a JSON object in a string."""
    text = fields.text("labels")
    if text is None:
        return {}
    try:
        labels = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        labels = text
    if labels is None:
        return {}
    strings = isinstance(labels, dict) and all(isinstance(v, str) for v in labels.values())
    if not strings or len(labels) > _MOST_LABELS or len(text) > 4096:
        raise Unprocessable(
            f"`labels` must be a JSON object of up to {_MOST_LABELS} strings.", param="labels"
        )
    return {str(name): value for name, value in labels.items()}
