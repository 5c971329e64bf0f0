"""The models that an engine offers, and which of them a request means. No torch here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vivace.errors import NotFound
from vivace.model.spec import ModelSpec
from vivace.text.tokenize import Tokenizer
from vivace.types import Sampling, SpeechRequest, Voice

Name = str | Path | None
Models = Name | Sequence[Name]
"""A checkpoint's folder or hub id, None for the embedded one; or several, the first by default."""


def several(models: Models) -> list[Name]:
    """A list of one or more."""
    if models is None or isinstance(models, str | Path):
        return [models]
    return list(models) or [None]


@dataclass(frozen=True, slots=True)
class Offer:
    """One checkpoint as the edge knows it."""

    model_id: str
    spec: ModelSpec
    tokenizer: Tokenizer

    @property
    def voices(self) -> list[Voice]:
        """Its named voices."""
        return [
            Voice(id, id.replace("_", " ").title(), self.spec.dialects.get(id))
            for id in self.spec.speakers
        ]

    @property
    def languages(self) -> list[str]:
        """Its languages, without the dialects that come with a voice."""
        dialects = set(self.spec.dialects.values())
        return [name for name in self.spec.languages if name not in dialects]

    @property
    def defaults(self) -> Sampling:
        """Its own sampling defaults."""
        return self.spec.defaults


@dataclass(frozen=True, slots=True)
class Wish:
    """What of a request tells which model is meant; the more of it is there, the less is open."""

    model: str | None = None  # by its id
    kind: str | None = None  # custom_voice, voice_design, base
    voice: str | None = None
    instruct: bool = False  # are there instructions?
    style: bool = False  # is there a way of speaking by name, which describes no voice?
    clone: bool = False  # is there a reference clip?
    hidden: int | None = None  # size of a clone's vector, where it is known


def wish_of(request: SpeechRequest) -> Wish:
    """What a request in checkpoints' own terms says of its model."""
    clone = request.clone
    return Wish(
        model=request.model,
        voice=request.voice,
        instruct=bool(request.instruct),
        clone=clone is not None,
        hidden=None if clone is None else np.size(clone.x_vector),
    )


def named_so(offer: Offer, voice: str) -> bool:
    """Has it a voice of that id?"""
    return voice.lower() in offer.spec.speakers


def choose(
    offers: Sequence[Offer], wish: Wish, speaks: Callable[[Offer, str], bool] = named_so
) -> int:
    """The place of the model that is meant: of those that fit best, the one listed first.

    A model that is named is taken, whatever else is asked of it: it says itself what it cannot do.
    Else one of the kind that is named; then a base model for a clone and for nothing else; one
    that `speaks` with the voice; instructions go to a model that follows them, and without a voice
    to one that designs it. Raises NotFound for a model that is not there.
    """
    if wish.model is not None:
        ids = [offer.model_id for offer in offers]
        if wish.model not in ids:
            known = ", ".join(ids)
            raise NotFound(f"no model {wish.model!r}; there are {known}", param="model")
        return ids.index(wish.model)
    if len(offers) == 1:
        return 0
    places = range(len(offers))
    return min(places, key=lambda place: (_misfit(offers[place], wish, speaks), place))


def _misfit(
    offer: Offer, wish: Wish, speaks: Callable[[Offer, str], bool]
) -> tuple[int | bool, ...]:
    """What speaks against it, the gravest first."""
    spec = offer.spec
    mute = wish.voice is not None and not speaks(offer, wish.voice)
    return (
        wish.kind is not None and spec.kind != wish.kind,
        (spec.kind == "base") != wish.clone,
        wish.clone and wish.hidden not in (None, spec.talker.hidden),
        mute + (mute and not spec.speakers),
        spec.kind == "voice_design" and not wish.instruct,
        (wish.instruct or wish.style) and not follows(spec),
        wish.instruct and wish.voice is None and spec.kind != "voice_design",
    )


def follows(spec: ModelSpec) -> bool:
    """Do instructions shape its speech? Smaller ones with voices of their own learnt none."""
    return spec.kind == "voice_design" or (spec.kind == "custom_voice" and spec.size == "1b7")
