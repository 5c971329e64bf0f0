"""A request in one checkpoint's own terms, checked: what reaches the engine's thread is sound."""

from dataclasses import fields, replace

import numpy as np

from vivace.config import Limits
from vivace.errors import NotFound, Unprocessable
from vivace.model.spec import ModelSpec
from vivace.types import SAMPLE_RATE, Clip, Clone, Sampling, SpeechRequest


def resolve(spec: ModelSpec, request: SpeechRequest, limits: Limits) -> SpeechRequest:
    """The request with lower-case ids and defaults filled in.

    Raises NotFound or Unprocessable, with the field, where the checkpoint has no such thing or a
    value is out of range.
    """
    language = request.language.lower()
    if language != "auto" and language not in spec.languages:
        known = ", ".join(["auto", *spec.languages])
        raise Unprocessable(
            f"no language {request.language!r}; there are {known}", param="language"
        )
    sampling = request.sampling or spec.defaults
    check_sampling(sampling, limits)
    return replace(
        request,
        voice=_voice(spec, request),
        language=language,
        # The 0.6B models were not trained on instructions; the official wrapper drops them too.
        instruct="" if spec.size == "0b6" and spec.kind == "custom_voice" else request.instruct,
        sampling=sampling,
    )


def check_sampling(sampling: Sampling, limits: Limits) -> None:
    """Refuse what would break a draw; the batch it would break is everybody's."""
    ranges: dict[str, tuple[float, float]] = {
        "temperature": (0, limits.temperature_max),
        "top_k": (0, limits.frames_max),
        "top_p": (0, 1),
        "repetition_penalty": (0, limits.repetition_penalty_max),
        "seed": (0, limits.seed_max),
        "min_frames": (0, limits.frames_max),
        "max_frames": (1, limits.frames_max),
    }
    for field in fields(sampling):
        low, high = ranges[field.name.removeprefix("subtalker_")]
        value = getattr(sampling, field.name)
        if value is None and field.name == "seed":
            continue
        whole = field.name.endswith("top_k") or field.name in ("seed", "min_frames", "max_frames")
        kind = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            what = "a whole number" if whole else "a number"
            raise Unprocessable(
                f"{field.name} must be {what} from {low:g} to {high:g}; got {value!r}",
                param=field.name,
            )


def _voice(spec: ModelSpec, request: SpeechRequest) -> str | None:
    if spec.kind == "base":
        if request.clone is None:
            raise Unprocessable(
                "a base model speaks with a reference clip's voice", param="ref_audio"
            )
        _check_clone(spec, request.clone)
        return None
    if request.clone is not None:
        raise Unprocessable(f"a {spec.kind} model does not clone voices", param="ref_audio")
    if not spec.speakers:
        if request.voice is not None:
            raise NotFound("this model has no named voices; describe one", param="voice")
        return None
    if request.voice is None:
        return next(iter(spec.speakers))
    voice = request.voice.lower()
    if voice not in spec.speakers:
        known = ", ".join(spec.speakers)
        raise NotFound(f"no voice {request.voice!r}; there are {known}", param="voice")
    return voice


def check_clip(spec: ModelSpec, clip: Clip, limits: Limits) -> None:
    """Refuse what no voice can be taken from.

    Raises Unprocessable, with the field.
    """
    if not spec.clones:
        raise Unprocessable(f"a {spec.kind} model does not clone voices", param="ref_audio")
    pcm, low, high = clip.pcm, limits.clip_min_s, limits.clip_max_s
    if pcm.ndim != 1 or not low <= len(pcm) / SAMPLE_RATE <= high:
        raise Unprocessable(
            f"a clip must be mono and last {low:g} to {high:g} s; got samples of shape {pcm.shape}",
            param="ref_audio",
        )
    if not np.isfinite(pcm).all():
        raise Unprocessable("a clip's samples must be finite", param="ref_audio")
    if len(clip.ref_text) > limits.ref_text_chars:
        raise Unprocessable(
            f"ref_text has {len(clip.ref_text):,} characters; the limit is "
            f"{limits.ref_text_chars:,}",
            param="ref_text",
        )
    if not 0 <= clip.silence_ms <= limits.clip_silence_ms:
        raise Unprocessable(
            f"silence_ms must be from 0 to {limits.clip_silence_ms}; got {clip.silence_ms}",
            param="ref_silence_ms",
        )


def _check_clone(spec: ModelSpec, clone: Clone) -> None:
    if clone.x_vector.shape != (spec.talker.hidden,):
        raise Unprocessable(
            f"x_vector has shape {clone.x_vector.shape}, expected ({spec.talker.hidden},)",
            param="x_vector",
        )
    codes = clone.ref_codes
    if codes is None:
        return
    if codes.ndim != 2 or codes.shape[1] != spec.codebooks or not len(codes):
        raise Unprocessable(
            f"ref_codes has shape {codes.shape}, expected (frames, {spec.codebooks})",
            param="ref_codes",
        )
    if codes.min() < 0 or codes.max() >= spec.codec.codebook_size:
        raise Unprocessable(
            f"ref_codes must be from 0 to {spec.codec.codebook_size - 1}", param="ref_codes"
        )
