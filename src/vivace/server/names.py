"""Names that clients use for models, voices and languages, mapped onto what a checkpoint has."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from vivace.errors import NotFound, Unprocessable
from vivace.types import Voice
from vivace.voices.kept import folded

# Names that leave it to the rest of a request which model is meant.
MODEL_ALIASES: Final = ("vivace", "tts-1", "tts-1-hd", "gpt-4o-mini-tts")

# OpenAI's voices and the published voice that stands in for each. A checkpoint without that voice
# uses its own voices in turn, by the position in this table.
OPENAI_VOICES: Final[Mapping[str, str]] = {
    "alloy": "vivian",
    "ash": "ryan",
    "ballad": "aiden",
    "coral": "serena",
    "echo": "aiden",
    "fable": "ryan",
    "onyx": "uncle_fu",
    "nova": "vivian",
    "sage": "serena",
    "shimmer": "sohee",
    "verse": "ryan",
    "marin": "serena",
    "cedar": "aiden",
}

LANGUAGE_CODES: Final[Mapping[str, str]] = {
    "zh": "chinese",
    "cmn": "chinese",
    "en": "english",
    "de": "german",
    "it": "italian",
    "pt": "portuguese",
    "es": "spanish",
    "ja": "japanese",
    "ko": "korean",
    "fr": "french",
    "ru": "russian",
}
_NAMED: Final = 50  # kept voices that an error lists
_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")  # gpt-4o-mini-tts-2025-12-15
_LANGUAGE_TAG = re.compile(r"([a-z]{2,3})([-_][a-z0-9]{1,8})*")


def model_names(ids: Sequence[str], aliases: Sequence[str] = ()) -> Mapping[str, str | None]:
    """Every model name a request may carry, and the model it means; None is whichever fits.

    First the models' own. An alias is a name, or NAME=MODEL.
    """
    pairs = (alias.partition("=") for alias in aliases)
    meant: dict[str, str | None] = {id: id for id in ids}
    for name, model in (*((name, None) for name in MODEL_ALIASES), *((p[0], p[2]) for p in pairs)):
        meant.setdefault(name, model or None)
    return meant


def check_aliases(ids: Sequence[str], aliases: Sequence[str]) -> None:
    """Raise NotFound for an alias of a model that is not here."""
    for name, model in model_names(ids, aliases).items():
        if model is not None and model not in ids:
            raise NotFound(
                f"The model alias {name} is for {model}, which is not here. "
                f"Models: {', '.join(ids)}.",
                param="model_aliases",
            )


def find_model(name: str, known: Collection[str]) -> str:
    """The name as it is listed, from one in any case, with a snapshot's date or not."""
    by_name = {listed.lower(): listed for listed in known}
    for wanted in (name.lower(), _SNAPSHOT.sub("", name.lower())):
        if wanted in by_name:
            return by_name[wanted]
    raise NotFound(
        f"There is no model {name[:64]!r} here. Models: {', '.join(known)}.",
        param="model",
        code="model_not_found",
    )


def find_voice(
    name: str,
    voices: Sequence[Voice],
    aliases: Mapping[str, str] | None = None,
    kept: Sequence[Voice] = (),
) -> Voice:
    """The voice of that id or name in any case, or the one that stands in for it.

    `kept` ones come after the checkpoint's own, which alone stand in for OpenAI's. `aliases` are
    the operator's stand-ins; OpenAI's names come after them.
    """
    known = _by_name(kept) | _by_name(voices)
    meant = stand_in(name, aliases or {})
    wanted = folded(meant or name)
    if wanted in known:
        return known[wanted]
    if wanted in OPENAI_VOICES and voices:
        in_turn = voices[list(OPENAI_VOICES).index(wanted) % len(voices)]
        return known.get(OPENAI_VOICES[wanted], in_turn)
    missing = f"There is no voice {name[:64]!r} here"
    if meant is not None:
        missing = f"The voice alias {name!r} is for {meant!r}, which is not here"
    raise NotFound(
        f"{missing}. Voices: {_listed(voices, kept)}.",
        param="voice",
        code="voice_not_found",
    )


def stand_in(name: str, aliases: Mapping[str, str]) -> str | None:
    """The voice that an operator's alias is for, if the name is one."""
    return {folded(alias): voice for alias, voice in aliases.items()}.get(folded(name))


def answers_to(name: str, voices: Iterable[Voice]) -> bool:
    """Is it the id or the name of one of them?"""
    return folded(name) in _by_name(voices)


def _by_name(voices: Iterable[Voice]) -> dict[str, Voice]:
    voices = list(voices)
    return {folded(v.name): v for v in voices} | {folded(v.id): v for v in voices}


def _listed(voices: Sequence[Voice], kept: Sequence[Voice]) -> str:
    """What an error tells of them; there may be a thousand that are kept."""
    names = [*(v.id for v in voices), *(v.name for v in kept[:_NAMED])]
    return ", ".join(names) + ", ..." * (len(kept) > _NAMED)


def language_code(name: str | None) -> str | None:
    """The tag of a checkpoint's language; a language without one keeps its name."""
    return next((code for code, known in LANGUAGE_CODES.items() if known == name), name)


def find_language(name: str, languages: Sequence[str]) -> str:
    """`auto`, or the checkpoint's language of that English name or BCP-47 tag, in any case."""
    wanted = name.lower()
    if tag := _LANGUAGE_TAG.fullmatch(wanted):
        wanted = LANGUAGE_CODES.get(tag[1], wanted)
    if wanted == "auto" or wanted in languages:
        return wanted
    known = ", ".join(dict.fromkeys(("auto", *languages)))
    raise Unprocessable(
        f"There is no language {name[:64]!r} here. Languages: {known}, or a tag such as en-US.",
        param="language",
        code="language_not_found",
    )
