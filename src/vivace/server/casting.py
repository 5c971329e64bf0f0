"""Kept voices in requests: which one a name means, and what a model needs of it."""

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vivace.audio.decoder import PARAM
from vivace.errors import NotFound, Unprocessable
from vivace.roster import Offer
from vivace.server.clips import ALONE, Reference
from vivace.server.fields import Fields
from vivace.server.names import OPENAI_VOICES, answers_to, find_voice, stand_in
from vivace.server.shelf import Shelf
from vivace.types import Voice
from vivace.voices.kept import Kept, folded

if TYPE_CHECKING:
    from vivace.engine import Engine


def meant(name: object, engine: "Engine", shelf: Shelf, aliases: Mapping[str, str]) -> Kept | None:
    """The kept voice of that name, unless it is one of a checkpoint's own."""
    if not isinstance(name, str) or shelf.voices is None:
        return None
    name = stand_in(name, aliases) or name
    if answers_to(name, (voice for offer in engine.models for voice in offer.voices)):
        return None
    return shelf.voices.find(name)


def kept_voice(name: str, aliases: Mapping[str, str], kept: Sequence[Voice]) -> Voice | None:
    """The voice of that name for a base model; None for one of OpenAI's, which says nothing.

    Clients that must send a voice send one of those. Raises NotFound for any other.
    """
    try:
        return find_voice(name, (), aliases, kept)
    except NotFound:
        if folded(name) in OPENAI_VOICES:
            return None
        raise


def clip_of_kept(fields: Fields, model: Offer, shelf: Shelf, kept: Kept) -> Reference | None:
    """The clip of a voice that another model has made, to make it anew; none if it fits.

    Raises Unprocessable if no clip is kept, or for fields that go with another clip.
    """
    for name in ("ref_text", *ALONE, "ref_silence_ms"):
        if fields.take(name) not in (None, False):
            raise Unprocessable(
                f"`{name}` goes with `{PARAM}`; a kept voice has its own clip.", param=name
            )
    if not fits(kept, model):
        return _again(kept, model, shelf)
    if kept.card.encoder != model.spec.prints.encoder:
        name = kept.card.name
        fields.warnings.append(f"the voice {name} was made by another model's encoder")
    return None


def fits(kept: Kept, model: Offer) -> bool:
    """Was a kept voice made for a model of this size?"""
    spec, vector, codes = model.spec, kept.clone.x_vector, kept.clone.ref_codes
    books, most = spec.codebooks, spec.codec.codebook_size
    sized = codes is None or (codes.shape[1] == books and codes.max() < most)
    return sized and len(vector) == spec.talker.hidden


def _again(kept: Kept, model: Offer, shelf: Shelf) -> Reference:
    """Its clip; what the model makes of it is remembered until the next start."""
    clip = shelf.store.clip(kept)
    if not clip:
        raise Unprocessable(
            f"The voice {kept.card.name!r} was made for another model (its x-vector has "
            f"{len(kept.clone.x_vector):,} numbers, this model's {model.spec.talker.hidden:,}), "
            "and no clip is kept with it: make it anew.",
            param="voice",
            code="voice_of_another_model",
        )
    source = base64.b64encode(clip).decode()
    language = kept.card.language or "auto"
    return Reference(source, kept.card.ref_text, language, model=model.model_id)
