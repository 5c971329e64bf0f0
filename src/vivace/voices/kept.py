"""One kept voice: what it is made of, what is known of it, and the file that holds both."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from vivace.errors import InvalidRequest, Unprocessable
from vivace.types import Clone
from vivace.voices.folder import Arrays, pack, unpack

KIND: Final = "vivace.voice"
KEPT: Final = "voice_"  # begins every kept voice's id
NAME_CHARS: Final = 64
_MOST: Final = {"x_vector": 8192, "frames": 7500, "codebooks": 64}  # 10 minutes of frames
_LATEST_S: Final = 32_503_680_000.0  # the year 3000, which every calendar here can show
_SEED_MOST: Final = 2**63 - 1
_LARGEST: Final = 1e4  # an x-vector's length; encoders make some tens
# Characters of what a card says: what may be made here at most, whatever a server's limits are.
_LONGEST: Final = {
    **{"description": 1_000, "language": 64, "encoder": 128},
    **{"prompt": 1 << 16, "instruct": 1 << 16, "ref_text": 1 << 16},
}
_LABELS: Final = 20, 4_096  # so many, and so many characters of all
_ID = re.compile(r"voice_[0-9a-f]{20}")


class Consent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who has agreed that their voice is used, in what words, and when they were recorded."""

    id: str
    name: str
    language: str = ""
    text: str = ""
    created_s: int = 0


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a kept voice besides its sound.

    `content` stands for all that shapes its sound, whatever it is called; `encoder` says which
    model's encoder made it. `language`, `seed` and `instruct` hold where a request does not say.
    """

    id: str
    name: str
    created_s: float
    content: str
    encoder: str
    version: Literal[1] = 1
    origin: Literal["clip", "prompt"] = "clip"
    prompt: str = ""  # that it was designed from
    ref_text: str = ""
    description: str = ""
    labels: dict[str, str] = {}
    language: str = ""
    seed: int | None = None
    instruct: str = ""
    consent: Consent | None = None
    clip_bytes: int = 0  # of the clip that is kept with it, in FLAC; 0 if there is none


@dataclass(frozen=True, slots=True)
class Kept:
    """A voice as the store holds it in memory; its clip stays on the disk."""

    card: Card
    clone: Clone


def content_of(clone: Clone) -> str:
    """What shapes a clone's sound, as 64 hex digits: the same voice under any name has the same."""
    hashed = hashlib.sha256(np.ascontiguousarray(clone.x_vector, "<f4").tobytes())
    if clone.ref_codes is not None:
        hashed.update(repr(clone.ref_codes.shape).encode())
        hashed.update(np.ascontiguousarray(clone.ref_codes, "<i8").tobytes())
        hashed.update(clone.ref_text.encode())
    return hashed.hexdigest()


def folded(name: str) -> str:
    """What names are compared by: in any case, and however their accents are written."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def check_name(name: str) -> str:
    """The name as it is kept.

    Raises Unprocessable for one that is empty, too long, or could be taken for a path.
    """
    name = unicodedata.normalize("NFC", name).strip()
    if not 1 <= len(name) <= NAME_CHARS:
        raise _bad_name(f"must have 1 to {NAME_CHARS} characters")
    if not name.isprintable() or name[0] in ".~" or set(name) & set('/\\:*?"<>|'):
        raise _bad_name('must be printable, without / \\ : * ? " < > |, and not begin with . or ~')
    return name


def to_file(card: Card, clone: Clone, clip: bytes = b"") -> bytes:
    """The bytes of a voice's file, which is also how it is exported."""
    arrays: Arrays = {"x_vector": clone.x_vector.astype("<f4")}
    if clone.ref_codes is not None:
        arrays["ref_codes"] = clone.ref_codes.astype("<i2")
    if clip:
        arrays["clip"] = np.frombuffer(clip, np.uint8)
    return pack(KIND, msgspec.json.encode(card), arrays)


def from_file(path: Path) -> Kept:
    """The voice in a file, without its clip.

    Raises InvalidRequest if that is no whole voice: a file may come from anybody.
    """
    raw, arrays = unpack(path, KIND, "x_vector", "ref_codes")
    try:
        card = msgspec.json.decode(raw, type=Card)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the voice's card cannot be read: {error}") from None
    clone = _clone(arrays, card.ref_text)
    if not _ID.fullmatch(card.id) or check_name(card.name) != card.name:
        raise InvalidRequest("the voice's id or name is none")
    _check_card(card)
    if content_of(clone) != card.content:
        raise InvalidRequest("the voice is not what its card says it is")
    return Kept(card, clone)


def _check_card(card: Card) -> None:
    """Raise InvalidRequest for what no card that is made here says."""
    if not 0 <= card.created_s < _LATEST_S:
        raise InvalidRequest("the voice's created_s is no time")
    if card.seed is not None and not 0 <= card.seed <= _SEED_MOST:
        raise InvalidRequest(f"the voice's seed must be 0 to {_SEED_MOST}")
    for name, most in _LONGEST.items():
        if len(getattr(card, name)) > most:
            raise InvalidRequest(f"the voice's {name} is longer than {most:,} characters")
    most, chars = _LABELS
    if len(card.labels) > most or sum(map(len, (*card.labels, *card.labels.values()))) > chars:
        raise InvalidRequest(f"the voice has more than {most} labels, or {chars:,} characters")
    if card.clip_bytes < 0:
        raise InvalidRequest("the voice's clip_bytes must be 0 or more")
    if (consent := card.consent) is not None:
        said = (consent.id, consent.name, consent.language, consent.text)
        if max(map(len, said)) > 1_000 or not 0 <= consent.created_s < _LATEST_S:
            raise InvalidRequest("the voice's consent is none that is made here")


def clip_of(path: Path) -> bytes:
    """The clip in a voice's file, in FLAC; empty if none is kept."""
    _, arrays = unpack(path, KIND, "clip")
    clip = arrays.get("clip")
    return b"" if clip is None else clip.tobytes()


def _clone(arrays: Arrays, ref_text: str) -> Clone:
    vector, codes = arrays.get("x_vector"), arrays.get("ref_codes")
    if vector is None or vector.ndim != 1 or not 1 <= len(vector) <= _MOST["x_vector"]:
        raise InvalidRequest("the voice has no x_vector of the shape [hidden]")
    if vector.dtype != np.float32 or not np.isfinite(vector).all():
        raise InvalidRequest("the voice's x_vector must be finite float32")
    if not 0 < np.linalg.norm(vector.astype(np.float64)) <= _LARGEST:
        raise InvalidRequest(
            f"the voice's x_vector must have a length up to {_LARGEST:,.0f}, not 0"
        )
    if (codes is not None) != bool(ref_text):
        raise InvalidRequest("the voice's ref_codes and ref_text go together")
    return Clone(vector.astype(np.float32), None if codes is None else _codes(codes), ref_text)


def _codes(codes: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    if codes.ndim != 2 or codes.dtype != np.int16 or codes.size == 0:
        raise InvalidRequest("the voice's ref_codes must be int16 [frames, codebooks]")
    if codes.shape[0] > _MOST["frames"] or codes.shape[1] > _MOST["codebooks"]:
        raise InvalidRequest(f"the voice's ref_codes are too many: {codes.shape}")
    wide = codes.astype(np.int64)
    if wide.min() < 0:
        raise InvalidRequest("the voice's ref_codes must be 0 or more")
    return wide


def _bad_name(why: str) -> Unprocessable:
    return Unprocessable(f"`name` {why}.", param="name", code="bad_name")
