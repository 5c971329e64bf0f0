"""The few records that travel between the edge, the engine and the scheduler. No torch here."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from vivace.errors import VivaceError

SAMPLE_RATE = 24_000
SAMPLES_PER_FRAME = 1_920
FRAME_S = SAMPLES_PER_FRAME / SAMPLE_RATE  # 80 ms of sound

Pcm = npt.NDArray[np.float32]  # [samples], -1..1, 24 kHz mono
Codes = npt.NDArray[np.int64]  # [frames, codebooks]


T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """A step that runs; a `Future` is one."""

    def done(self) -> bool:
        """Is the result there?"""
        ...

    def result(self) -> T_co:
        """The result, waited for if need be; raises what went wrong."""
        ...


class TextMode(StrEnum):
    """Where the text stands: one token under each frame, or all of it before the first."""

    STREAMING = "streaming"
    WHOLE = "whole"


class FinishReason(StrEnum):
    """Why a session ended. Only `stop` is success with sound."""

    STOP = "stop"  # the model ended its speech
    LENGTH = "length"  # we ended it: a guard, max_frames or context
    NO_AUDIO = "no_audio"  # the model ended before the first frame
    CANCELLED = "cancelled"
    ERROR = "error"


class Cut(StrEnum):
    """The guard that ended speech which the model did not end (`audio.guards`)."""

    CAP = "cap"  # more sound than the text can become
    SILENCE = "silence"  # the text was spoken, and only silence came
    LOOP = "loop"  # the same few frames over and over


@dataclass(frozen=True, slots=True)
class Sampling:
    """How codes are drawn. Temperature 0 is argmax; top_k 0 and top_p 1 are off.

    The `subtalker_` fields are for codes 1.., drawn by the code predictor. `seed` None draws a
    fresh one. `min_frames` bans end-of-speech before that many frames, `max_frames` caps them: the
    checkpoint's own number those of each piece of a long text, another those of the whole.
    """

    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    seed: int | None = None
    min_frames: int = 2
    max_frames: int = 8192


@dataclass(frozen=True, slots=True)
class Clone:
    """A voice taken from a clip.

    `x_vector` [hidden] stands in for a named speaker. With `ref_codes` [frames, codebooks] and the
    `ref_text` they speak, the model continues the clip (in-context learning); without, it is
    x-vector only.
    """

    x_vector: npt.NDArray[np.float32]
    ref_codes: Codes | None = None
    ref_text: str = ""


SILENCE_MS = 500  # behind a clip that speech goes on from, so that its end is not heard again


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """A reference that has been decoded: samples of 24 kHz, and the words in them.

    Without words it gives an x-vector alone. With them its codes are taken too, with at least
    `silence_ms` behind it, to a whole number of frames; 0 adds none.
    """

    pcm: Pcm
    ref_text: str = ""
    silence_ms: int = SILENCE_MS

    @property
    def key(self) -> str:
        """What the voice depends on, as a hash: samples, words and silence, and no name."""
        words = f"{self.silence_ms} {self.ref_text}" if self.ref_text else ""
        digest = hashlib.sha256(words.encode() + b"\0")
        digest.update(np.ascontiguousarray(self.pcm, np.float32).data)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """Everything that shapes the sound except the text, which the session takes piece by piece.

    `voice` and `language` are ids of the checkpoint in lower case ("auto" leaves the language to
    the model). `normalize` takes out of the text what is written for the eye, such as markdown, and
    `trim` drops the silence before the speech; None does as the engine's config says. `sampling`
    None takes the checkpoint's own defaults. `guards` off lets speech run away: no cap that goes
    with the length of the text, no look at silence and loops, no second draw (parity runs).
    `patient` says that nobody listens yet: it waits for room as long as it takes, where a live one
    is sent away, and up to 10 s of its sound are kept back, so that it can be drawn again. `model`
    is the id of one of the engine's checkpoints; None leaves it to the voice, the clone and the
    instructions.
    """

    voice: str | None = None
    language: str = "auto"
    instruct: str = ""
    text_mode: TextMode = TextMode.STREAMING
    sampling: Sampling | None = None
    clone: Clone | None = None
    guards: bool = True
    trim: bool | None = None
    normalize: bool | None = None
    patient: bool = False
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One session in a talker step: its slot and the text id under its next frame."""

    slot: int
    text: int


@dataclass(frozen=True, slots=True)
class Frames:
    """What a talker step made: codes [B, 16], and which rows [B] ended instead.

    `spoilt` rows [B] came of numbers that are none, such as 0 / 0; None is no row.
    """

    codes: Codes
    ended: npt.NDArray[np.bool_]
    spoilt: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some frames of one session, in order: their sound and the codes it was made from.

    The first chunk's sound may be shorter than its frames: silence before the speech is trimmed.
    """

    pcm: Pcm
    codes: Codes


@dataclass(frozen=True, slots=True)
class Done:
    """The one terminal event of a session.

    `cut` names the guard, if one ended it or a piece of it: then the reason is `length`. It was
    drawn `redraws` times more than once.
    """

    reason: FinishReason
    frames: int
    text_tokens: int
    seed: int
    error: VivaceError | None = None
    cut: Cut | None = None
    redraws: int = 0

    @property
    def told(self) -> dict[str, str]:
        """How it ended, as clients are told: `finish_reason`, and `guard` if one ended it."""
        guard = {} if self.cut is None else {"guard": self.cut.value}
        return {"finish_reason": self.reason.value, **guard}


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice a checkpoint can speak with."""

    id: str
    name: str
    language: str | None = None  # the dialect or native language, where the checkpoint says so
