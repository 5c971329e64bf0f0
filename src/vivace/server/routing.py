"""Which of the engine's models an order is for, by the fields that say so."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vivace.config import ServerConfig
from vivace.errors import NotFound
from vivace.roster import Offer, Wish, choose
from vivace.server.casting import meant
from vivace.server.fields import Fields
from vivace.server.names import find_model, find_voice, model_names
from vivace.server.shelf import EMPTY, Shelf

if TYPE_CHECKING:
    from vivace.engine import Engine

KINDS: Final = {kind.replace("_", ""): kind for kind in ("custom_voice", "voice_design", "base")}
_CLONING: Final = ("ref_audio", "ref_text", "x_vector_only", "x_vector_only_mode")


def model_of(fields: Fields, engine: "Engine", config: ServerConfig, shelf: Shelf = EMPTY) -> Offer:
    """The model that is meant; takes `model`, and only looks at the other fields.

    Raises NotFound for a model that is not here, Unprocessable for one that is no name.
    """
    name = fields.text("model")
    ids = [model.model_id for model in engine.models]
    names, model = model_names(ids, config.model_aliases), None
    if name is not None:
        model = names[find_model(name, names)]
    aliases = config.voice_aliases

    def speaks(offer: Offer, voice: str) -> bool:
        try:
            return bool(find_voice(voice, offer.voices, aliases))
        except NotFound:
            return False

    wish = wish_of(fields, model)
    kept = None if wish.clone else meant(wish.voice, engine, shelf, aliases)
    if kept is not None:  # the name of a voice that a base model speaks with
        wish = replace(wish, voice=None, clone=True, hidden=len(kept.clone.x_vector))
    return engine.models[choose(engine.models, wish, speaks)]


def wish_of(fields: Fields, model: str | None) -> Wish:
    """What the fields say of the model; what is wrong with them is found where they are read."""
    left = fields.left()
    voice = left.get("voice", left.get("speaker"))
    if isinstance(voice, dict):
        voice = voice.get("id")
    task = str(left.get("task_type", "")).lower().replace("_", "")
    described = (left.get(name) for name in ("instructions", "instruct"))
    return Wish(
        model=model,
        kind=KINDS.get(task),
        voice=voice if isinstance(voice, str) else None,
        instruct=any(isinstance(words, str) and words.strip() for words in described),
        style=bool(left.get("style")),
        clone=any(left.get(name) for name in _CLONING),
    )
