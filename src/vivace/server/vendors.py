"""What ElevenLabs' and Cartesia's routes share: they place our order in other words."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from starlette.requests import Request

from vivace.errors import InvalidRequest, NotFound
from vivace.server.body import LONG_BODY, parse, read_body
from vivace.server.clips import most_body
from vivace.server.fields import Fields
from vivace.server.live.conversation import Stage
from vivace.server.names import find_model, find_voice, model_names
from vivace.server.order import Order, Output, read_manner, read_order
from vivace.types import Voice

T = TypeVar("T")

# How the vendors name their own voices: 20 letters and figures, or a UUID.
_VENDORS_VOICE = re.compile(
    r"[a-z0-9]{20}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE
)


class Edge(Stage):
    """The stage, with the ways of a vendor's request to an order."""

    __slots__ = ()

    def voice(self, name: str) -> Voice:
        """The voice of that name; for an id of the vendor's own, the first one.

        Raises NotFound, which lists the voices.
        """
        voices = self.engine.voices
        try:
            return find_voice(name, voices, self.config.voice_aliases, self.kept_voices)
        except NotFound:
            if voices and _VENDORS_VOICE.fullmatch(name):
                return voices[0]
            raise

    @property
    def kept_voices(self) -> list[Voice]:
        """Those that clients have made here."""
        return self.shelf.voices_of(self.engine)

    @property
    def _clones(self) -> bool:
        """Is there a model that speaks with kept voices?"""
        return any(model.spec.kind == "base" for model in self.engine.models)

    async def read(self, request: Request, read: Callable[[Fields], T]) -> T:
        """What the request's JSON body says."""
        config = self.config
        raw = await read_body(request, most_body(self.engine, config.limits), config.body_s)
        return await self.workers.run(lambda: read(Fields(parse(raw))), aside=len(raw) > LONG_BODY)

    def order(self, wanted: "Wanted", text: str | None) -> Order:
        """The order for one whole text."""
        with called(wanted.names):
            body = {**self._body(wanted), "input": text}
            order = read_order(body, self.engine, self.config, self.shelf)
        output = replace(wanted.output, speed=order.output.speed)
        return replace(order, output=output, warnings=(*self._stand_in(wanted), *order.warnings))

    def manner(self, wanted: "Wanted") -> Order:
        """An order whose text is still to come."""
        fields = Fields(self._body(wanted))
        with called(wanted.names):
            request, ours, reference = read_manner(fields, self.engine, self.config, self.shelf)
        speed = ours.speed
        return Order("", request, replace(wanted.output, speed=speed), (), reference=reference)

    def _body(self, wanted: "Wanted") -> dict[str, object]:
        """The same in our words. Fields of ours that the vendor does not have are let through."""
        body = {**wanted.rest.left(), **wanted.wishes}
        if wanted.model is not None and self._is_ours(wanted.model):
            body["model"] = wanted.model
        if wanted.voice is not None and (self.engine.voices or self._clones):
            body["voice"] = self.voice(wanted.voice).id
        return body

    def _is_ours(self, model: str) -> bool:
        """Is it a model's name here? Any of a vendor's own leaves it to the rest of the request."""
        ids = [offer.model_id for offer in self.engine.models]
        try:
            return bool(find_model(model, model_names(ids, self.config.model_aliases)))
        except NotFound:
            return False

    def _stand_in(self, wanted: "Wanted") -> list[str]:
        """A warning, if the voice is not the one of that name."""
        if wanted.voice is None or not self.engine.voices:
            return []
        found = self.voice(wanted.voice).id
        vendors = _VENDORS_VOICE.fullmatch(wanted.voice) and found != wanted.voice.lower()
        return [f"{found} stands in for the voice {wanted.voice}"] if vendors else []


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a vendor's request asks for.

    `wishes` are in our words, `rest` is what was not understood, and `names` says what the client
    calls our fields.
    """

    wishes: Mapping[str, object]
    voice: str | None
    output: Output
    rest: Fields
    names: Mapping[str, str]
    model: str | None = None


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Refusals name a field as the client does."""
    try:
        yield
    except InvalidRequest as error:
        if theirs := names.get(error.param or ""):
            error.message = error.message.replace(f"`{error.param}`", f"`{theirs}`")
            error.param = theirs
        raise
