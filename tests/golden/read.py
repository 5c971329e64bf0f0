"""Reads the golden files: the official package's calls as our requests, and what came of them."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.golden.clips import CLIPS, hum

from vivace.types import Clone, Codes, Pcm, Sampling, SpeechRequest, TextMode

HERE = Path(__file__).parent
FRAMES = 10  # most frames of a case, as in regenerate.py
CHECKPOINTS = ("custom_voice", "custom_voice_0b6", "voice_design", "base")
NO_CALLS = ("clone", "clips")
CODEC_FRAMES = (1, 5, 80, 330)
DRAWS = (
    *("temperature", "top_k", "top_p", "repetition_penalty"),
    *("subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Row:
    """One text of a call: what was asked, and what the official package fed, computed and said."""

    request: SpeechRequest
    text: str
    prompt: Floats  # [P, hidden]
    trailing: Floats  # [N, hidden] text rows under frames 1.., padded with tts_pad
    talker_logits: Floats  # [4, vocab] raw, of the first steps
    predictor_logits: Floats  # [15, entries] raw, of the first frame
    codes: Codes  # [T, 16]
    pcm: Pcm  # [T * 1920]

    @property
    def stopped(self) -> bool:
        """Did the model end its speech, or was it cut off?"""
        return len(self.codes) < FRAMES


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the official package; more than one row is a batch."""

    checkpoint: str
    name: str
    seed: int | None  # of torch's generator; None is greedy
    tts_pad: Floats  # [hidden]
    rows: tuple[Row, ...]


def names(checkpoint: str, *, sampled: bool = False) -> list[str]:
    """The cases of a checkpoint, the greedy or the sampled ones."""
    found = (path.name.split(".")[1] for path in (HERE / "cases").glob(f"{checkpoint}.*.npz"))
    return sorted(n for n in found if n not in NO_CALLS and ("sampled" in n) == sampled)


def assemble(checkpoint: str, out: Path) -> Path:
    """Put a checkpoint's own files and the common ones together in `out`."""
    for part in ("common", checkpoint):
        shutil.copytree(HERE / "checkpoints" / part, out, dirs_exist_ok=True)
    return out


def clone(x_vector_only: bool) -> Clone:
    """The golden clip as the official package has encoded it."""
    with np.load(HERE / "cases" / "base.clone.npz") as kept:
        if x_vector_only:
            return Clone(kept["x_vector"])
        codes = kept["ref_codes"].astype(np.int64)
        return Clone(kept["x_vector"], codes, str(kept["ref_text"]))


def clips() -> Iterator[tuple[Pcm, Codes, Floats]]:
    """Clips [N], and what the official package encodes them to: codes [T, 16], x-vector."""
    with np.load(HERE / "cases" / "base.clone.npz") as kept:
        yield _heard(kept["clip"]), kept["ref_codes"].astype(np.int64), kept["x_vector"]
    with np.load(HERE / "cases" / "base.clips.npz") as kept:
        for samples in CLIPS:
            codes = kept[f"codes_{samples}"].astype(np.int64)
            yield _heard(hum(samples)), codes, kept[f"x_vector_{samples}"]


def _heard(clip: npt.NDArray[np.int16]) -> Pcm:
    return clip.astype(np.float32) / 32768


def case(checkpoint: str, name: str) -> Case:
    """Read one call."""
    with np.load(HERE / "cases" / f"{checkpoint}.{name}.npz") as kept:
        call = json.loads(str(kept["request"]))
        texts = call["text"] if isinstance(call["text"], list) else [call["text"]]
        rows = tuple(_row(checkpoint, call, kept, i) for i in range(len(texts)))
        return Case(checkpoint, name, call["seed"], kept["tts_pad"], rows)


def codec(frames: int) -> tuple[Codes, int, Pcm]:
    """Random codes [T, 16] and every so-manyth sample of their sound, decoded whole."""
    with np.load(HERE / "cases" / f"codec.{frames}.npz") as kept:
        return kept["codes"].astype(np.int64), int(kept["stride"]), kept["pcm"]


def _row(checkpoint: str, call: dict[str, Any], kept: Mapping[str, Any], i: int) -> Row:
    asked = {key: value[i] if isinstance(value, list) else value for key, value in call.items()}
    return Row(
        request=_request(checkpoint, asked),
        text=asked["text"],
        codes=kept[f"codes_{i}"].astype(np.int64),
        **{
            key: kept[f"{key}_{i}"]
            for key in ("prompt", "trailing", "talker_logits", "predictor_logits", "pcm")
        },
    )


def _request(checkpoint: str, asked: Mapping[str, Any]) -> SpeechRequest:
    base = checkpoint == "base"
    whole = asked.get("non_streaming_mode", not base)  # the official defaults
    greedy = {} if asked["seed"] is not None else dict(temperature=0.0, subtalker_temperature=0.0)
    draws = greedy | {key: asked[key] for key in DRAWS if key in asked}
    return SpeechRequest(
        voice=asked["speaker"].lower() if "speaker" in asked else None,
        language=asked.get("language", "auto").lower(),
        instruct=asked.get("instruct", ""),
        text_mode=TextMode.WHOLE if whole else TextMode.STREAMING,
        sampling=Sampling(**draws, max_frames=FRAMES),
        clone=clone(asked.get("x_vector_only_mode", False)) if base else None,
        guards=False,
        patient=True,  # a machine that is busy sends nobody away
    )
