"""Finds, reads and writes checkpoints in the published layout."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vivace.checkpoint.prints import prints_of
from vivace.checkpoint.read import CODEC_FOLDER, read_spec
from vivace.checkpoint.weights import Unfilled, Weights
from vivace.model.codec import Codec
from vivace.model.codec_encoder import CodecEncoder
from vivace.model.predictor import Predictor
from vivace.model.speaker import SpeakerEncoder
from vivace.model.spec import ModelSpec
from vivace.model.talker import Talker


@dataclass(frozen=True, slots=True)
class Encoders:
    """What a base checkpoint takes a voice from a clip with."""

    speaker: SpeakerEncoder
    codec: CodecEncoder

    @property
    def both(self) -> tuple[SpeakerEncoder, CodecEncoder]:
        """In that order."""
        return self.speaker, self.codec


@dataclass(frozen=True, slots=True)
class Model:
    """One loaded checkpoint, ready to run; `encoders` are those of a base one."""

    spec: ModelSpec
    talker: Talker
    predictor: Predictor
    codec: Codec
    encoders: Encoders | None = None


def load(
    path: Path,
    device: torch.device | str,
    dtype: torch.dtype,
    codec: Codec | None = None,
) -> Model:
    """Load the checkpoint in the folder `path`.

    The talker and the predictor run in `dtype`; the codec stays in fp32, which its sound needs, and
    so do the encoders, whose codes are choices that rounding would flip. `codec` is one that is
    loaded already, of the same weights. Raises CheckpointError that says what to do.
    """
    model = load_talker(path, look(path), device, dtype, codec)
    return replace(model, encoders=load_encoders(path, model.spec, device))


def load_talker(
    path: Path,
    spec: ModelSpec,
    device: torch.device | str,
    dtype: torch.dtype,
    codec: Codec | None,
) -> Model:
    """The same without the encoders, of a checkpoint that has been looked at."""
    talker, predictor = unfilled(spec, device, dtype)
    Weights(path).load(talker, predictor)
    if codec is None:
        codec = unfilled_codec(spec, device)
        Weights(path / CODEC_FOLDER).load(codec)
    for module in (talker, predictor, codec):
        module.eval().requires_grad_(False)
    return Model(spec, talker, predictor, codec)


def load_encoders(path: Path, spec: ModelSpec, device: torch.device | str) -> Encoders | None:
    """The encoders of a base checkpoint, alone; None for another."""
    encoders = unfilled_encoders(spec, device)
    if encoders is None:
        return None
    Weights(path).load(encoders.speaker)
    Weights(path / CODEC_FOLDER).load(encoders.codec)
    for module in encoders.both:
        module.eval().requires_grad_(False)
    return encoders


def look(path: Path) -> ModelSpec:
    """What is in the folder, by its config files and the headers of all its tensors.

    Raises CheckpointError as `load` does, for all but tensors of another shape.
    """
    spec = read_spec(path)
    for folder in (path, path / CODEC_FOLDER):
        Weights(folder)
    return replace(spec, prints=prints_of(path))


def unfilled(
    spec: ModelSpec, device: torch.device | str, dtype: torch.dtype
) -> tuple[Talker, Predictor]:
    """Talker and predictor without weights; on "meta" they only know how large they are."""
    with torch.device(device), Unfilled(dtype):
        return Talker(spec), Predictor(spec)


def unfilled_encoders(spec: ModelSpec, device: torch.device | str) -> Encoders | None:
    """The encoders without weights, where the checkpoint has some."""
    with torch.device(device), Unfilled():
        return _encoders(spec)


def unfilled_codec(spec: ModelSpec, device: torch.device | str) -> Codec:
    """The codec without weights."""
    with torch.device(device), Unfilled():
        return Codec(spec.codec)


def _encoders(spec: ModelSpec) -> Encoders | None:
    if spec.speaker_encoder is None or spec.codec_encoder is None:
        return None
    return Encoders(
        SpeakerEncoder(spec.speaker_encoder), CodecEncoder(spec.codec, spec.codec_encoder)
    )
