"""The shapes and ids of one checkpoint, as its config files say. No torch here."""

from collections.abc import Mapping
from dataclasses import dataclass

from vivace.types import Sampling

PIECE_S = 20.0  # published configs do not say


@dataclass(frozen=True, slots=True)
class TransformerSpec:
    """One Qwen3 decoder stack (talker or code predictor)."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int  # codec entries of this stack's heads
    rope_theta: float
    rms_eps: float


@dataclass(frozen=True, slots=True)
class TextIds:
    """Special ids of the text vocabulary."""

    im_start: int
    im_end: int
    assistant: int
    tts_bos: int
    tts_eos: int
    tts_pad: int


@dataclass(frozen=True, slots=True)
class CodecIds:
    """Special ids of the talker's codec vocabulary."""

    bos: int
    eos: int
    pad: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True, slots=True)
class SpeakerSpec:
    """The x-vector encoder of a base checkpoint (ECAPA-TDNN)."""

    dim: int
    mel_dim: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention_channels: int
    res2net_scale: int
    se_channels: int


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """The speech tokenizer's encoder (Mimi's), which a base checkpoint takes voices with."""

    filters: int  # channels behind the first convolution
    rates: tuple[int, ...]  # from the last stage to the first
    residuals: int  # of each stage
    compress: int
    dilation_growth: int
    kernel: int
    residual_kernel: int
    last_kernel: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    eps: float
    codebook_dim: int


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """The speech tokenizer's decoder; `encoder` is its raw Mimi config."""

    latent: int
    codebook_dim: int
    codebook_size: int
    quantizers: int
    semantic_quantizers: int
    decoder_dim: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int  # sliding window, counting the query itself
    rope_theta: float
    rms_eps: float
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]
    encoder: Mapping[str, object]

    @property
    def frame_samples(self) -> int:
        """Samples one frame decodes to (1,920 in every published checkpoint)."""
        samples = 1
        for rate in (*self.upsample_rates, *self.upsampling_ratios):
            samples *= rate
        return samples


@dataclass(frozen=True, slots=True)
class Prints:
    """Hashes that tell weights apart.

    Of all of them, of those that take a voice from a clip, and of those that make codes sound.

    Empty for a checkpoint that has not been loaded.
    """

    model: str = ""
    encoder: str = ""
    codec: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One Qwen3-TTS checkpoint.

    `languages`, `speakers` map lower-case names to codec ids; `dialects` a speaker to its dialect's
    name in `languages`. `defaults` are the checkpoint's own generation defaults, `piece_s` is how
    long it can speak from one prompt before words get lost.
    """

    kind: str  # custom_voice, voice_design, base
    size: str  # 0b6, 1b7 or whatever the config says
    text_vocab: int
    text_hidden: int
    talker: TransformerSpec
    predictor: TransformerSpec
    codebooks: int  # 16
    text_ids: TextIds
    codec_ids: CodecIds
    languages: Mapping[str, int]
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]
    codec: CodecSpec
    speaker_encoder: SpeakerSpec | None
    defaults: Sampling
    piece_s: float = PIECE_S
    prints: Prints = Prints()
    codec_encoder: EncoderSpec | None = None

    @property
    def clones(self) -> bool:
        """Can it take a voice from a clip?"""
        return self.speaker_encoder is not None and self.codec_encoder is not None
