"""Where voices are made from clips, to be kept."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from vivace.config import ServerConfig
from vivace.errors import EngineFailure, InvalidRequest, Unprocessable
from vivace.roster import Offer
from vivace.server.clips import check_words, words_of
from vivace.server.fields import Fields, bounded
from vivace.server.names import find_language
from vivace.server.shelf import Shelf
from vivace.types import FRAME_S, SAMPLE_RATE, Clip, FinishReason, Pcm, SpeechRequest
from vivace.voices.clips import rounded, to_flac
from vivace.voices.kept import Kept
from vivace.voices.store import Making

if TYPE_CHECKING:
    from vivace.engine import Engine

DESCRIPTION_CHARS = 1000
# What a designed voice says where the client does not: eight seconds with most of its sounds.
SCRIPTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "english": "Good morning. The quick brown fox has found a warm place by the river, "
        "and there it watches the boats go by until the sun is high.",
        "chinese": "早上好。今天的天气很不错，我们沿着河边慢慢地走，看一只只小船从桥下经过，"
        "一直走到太阳高高升起。",
    }
)


class Decode(Protocol):
    """Reads the file of a clip."""

    def __call__(self, data: bytes, *, as_it_is: bool = False) -> tuple[Pcm, list[str]]:
        """Samples of 24 kHz, and warnings; the silence at their ends stays if it is `as_it_is`.

        Raises Unprocessable for what no voice can be taken from.
        """
        ...


@dataclass(frozen=True, slots=True)
class Studio:
    """Takes a voice from a clip and keeps both. Its calls take as long as that takes."""

    engine: "Engine"
    shelf: Shelf
    decode: Decode

    @property
    def base(self) -> Offer:
        """The model that takes voices from clips. Raises Unprocessable if there is none."""
        if (model := self._of_kind("base")) is None:
            raise Unprocessable(
                "A voice is taken from a clip by a base checkpoint, and none is loaded.",
                code="no_base_checkpoint",
            )
        return model

    def make(self, making: Making, file: bytes) -> tuple[Kept, list[str]]:
        """A kept voice from the file of a clip, and warnings; with its words it is continued.

        Raises what decoding, `Engine.clone` and `Store.add` raise.
        """
        base = self.base
        self.shelf.store.check_new(making)
        pcm, warnings = self.decode(file)
        if making.ref_text:
            warnings += check_words(making.ref_text, len(pcm) / SAMPLE_RATE, making.language)
        return self._keep(base, making, pcm), warnings

    def design(self, making: Making) -> Kept:
        """A kept voice from its `prompt`: a voice_design model says its `ref_text` in that voice.

        What it says is the clip. Raises Unprocessable without such a model and a base one, and what
        `Engine.say`, `Engine.clone` and `Store.add` raise.
        """
        base, designer = self.base, self._designer
        self.shelf.store.check_new(making)
        if not making.ref_text:
            making = replace(making, ref_text=SCRIPTS.get(making.language, SCRIPTS["english"]))
        return self._keep(base, making, self._said(making, designer))

    @property
    def _designer(self) -> Offer:
        if (model := self._of_kind("voice_design")) is None:
            raise Unprocessable(
                "A voice is designed by a voice_design checkpoint beside a base one; "
                "there is none.",
                param="type",
                code="no_design_checkpoint",
            )
        return model

    def _of_kind(self, kind: str) -> Offer | None:
        return next((model for model in self.engine.models if model.spec.kind == kind), None)

    def _said(self, making: Making, designer: Offer) -> Pcm:
        """The sound of the voice that is described."""
        language = making.language if making.language in designer.languages else "auto"
        request = SpeechRequest(
            model=designer.model_id,
            language=language,
            instruct=making.prompt,
            sampling=replace(designer.defaults, seed=making.seed),
            normalize=False,  # its words stay as they are
            patient=True,
        )
        session = self.engine.say(making.ref_text, request)
        pcm = [chunk.pcm for chunk in session]
        assert session.done is not None
        if session.done.reason is not FinishReason.STOP:
            raise EngineFailure(f"The design ended with {session.done.reason}: try another seed.")
        return np.concatenate(pcm)

    def _keep(self, base: Offer, making: Making, pcm: Pcm) -> Kept:
        clone = self.engine.clone(Clip(rounded(pcm), making.ref_text), base.model_id)
        clip = to_flac(pcm) if making.keep_clip else b""
        return self.shelf.store.add(making, clone, base.spec.prints.encoder, clip)

    def renew(self, kept: Kept) -> Kept:
        """The voice made again by this server's base model, of the clip that is kept with it.

        Raises Unprocessable if there is none, and what `make` raises.
        """
        base = self.base
        clip = self.shelf.store.clip(kept)
        if not clip:
            raise Unprocessable(
                f"No clip is kept with the voice {kept.card.name!r}: make it anew from one.",
                param="voice",
                code="no_clip",
            )
        pcm, _ = self.decode(clip, as_it_is=True)
        clone = self.engine.clone(Clip(pcm, kept.card.ref_text), base.model_id)
        return self.shelf.store.renew(kept.card.id, clone, base.spec.prints.encoder)


def check_taken(studio: Studio, config: ServerConfig, kept: Kept, clip: bytes) -> None:
    """Is a voice from a file one that could have been made here?

    Raises InvalidRequest and its children, as making it would.
    """
    card, limits = kept.card, config.limits
    if card.language:
        find_language(card.language, studio.engine.languages)
    bounded("instructions", card.instruct, limits.instruct_chars)
    bounded("prompt", card.prompt, limits.instruct_chars)
    if kept.clone.ref_codes is not None:
        words_of(card.ref_text, limits)
        check_words(card.ref_text, len(kept.clone.ref_codes) * FRAME_S, card.language or "auto")
    if clip:
        studio.decode(clip, as_it_is=True)


def read_making(fields: Fields, engine: "Engine", config: ServerConfig) -> Making:
    """What a client says of the voice that it wants, and the words in its clip.

    Raises InvalidRequest and its children.
    """
    said = read_changes(fields, engine, config)
    text, alone = fields.text("ref_text"), fields.flag_text("x_vector_only")
    ref_text = words_of(text, config.limits) if text and text.strip() and not alone else ""
    keep_clip = fields.flag_text("keep_clip") is not False
    if "name" not in said:
        raise InvalidRequest("`name` is missing: it names the voice.", param="name")
    return Making(ref_text=ref_text, keep_clip=keep_clip, **said)


def read_changes(fields: Fields, engine: "Engine", config: ServerConfig) -> dict[str, Any]:
    """Those of name, description, language, seed and instruct that are there."""
    limits, said = config.limits, dict[str, Any]()
    if (name := fields.text("name")) is not None:
        said["name"] = name
    if (description := fields.text("description")) is not None:
        said["description"] = bounded("description", description, DESCRIPTION_CHARS)
    if (language := fields.text("language")) is not None:
        found = find_language(language, engine.languages)
        said["language"] = "" if found == "auto" else found
    if (seed := fields.whole_text("seed", 0, limits.seed_max)) is not None:
        said["seed"] = seed
    instruct = fields.either("instructions", "instruct", fields.text)
    if instruct is not None:
        said["instruct"] = bounded("instructions", instruct.strip(), limits.instruct_chars)
        fields.warnings.append("instructions are kept, but base checkpoints cannot follow them")
    return said
