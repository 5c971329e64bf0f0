"""Reads the config files of a checkpoint into a `ModelSpec`, or says what is wrong with them."""

from dataclasses import asdict
from math import prod
from pathlib import Path

from vivace.checkpoint.fields import Fields, read_json
from vivace.errors import CheckpointError
from vivace.model.spec import (
    PIECE_S,
    CodecIds,
    CodecSpec,
    EncoderSpec,
    ModelSpec,
    SpeakerSpec,
    TextIds,
    TransformerSpec,
)
from vivace.types import SAMPLE_RATE, SAMPLES_PER_FRAME, Sampling

KINDS = ("custom_voice", "voice_design", "base")
CODEC = "qwen3_tts_tokenizer_12hz"
CODEC_FOLDER = "speech_tokenizer"
EXAMPLE = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"


def read_spec(path: Path) -> ModelSpec:
    """Shapes, ids, voices and defaults of the checkpoint in the folder `path`.

    Raises CheckpointError naming every field that is missing or contradicts another.
    """
    faults: list[str] = []
    root = _root(path, faults)
    tokenizer = _tokenizer(path, faults)
    spec = _spec(root, tokenizer, _defaults(path, faults))
    if not faults:
        faults = [f"{path}: {fault}" for fault in _contradictions(spec)]
    if faults:
        raise CheckpointError(
            "The checkpoint's config cannot be used: " + "; ".join(faults) + ". Fetch its .json "
            f"files again, or compare them with those of {EXAMPLE}.",
            code="config",
        )
    return spec


def _root(path: Path, faults: list[str]) -> Fields:
    """config.json, after making sure that it is a 12 Hz Qwen3-TTS."""
    file = path / "config.json"
    hint = f"Give the folder of a Qwen3-TTS checkpoint, or a hub id such as {EXAMPLE}."
    root = Fields(f"{file}: ", read_json(file, hint), faults)
    kind = root.data.get("model_type")
    if kind != "qwen3_tts":
        raise CheckpointError(
            f"{file} says model_type {kind!r}; vivace runs 'qwen3_tts'. {hint}",
            code="not_qwen3_tts",
        )
    _refuse_other_codec(root, "tokenizer_type")
    return root


def _refuse_other_codec(fields: Fields, name: str) -> None:
    codec = fields.text(name)
    if codec not in (CODEC, ""):  # empty: already noted as missing
        raise CheckpointError(
            f"{fields.where}{name} is {codec!r}. vivace speaks the 12 Hz tokenizer ({CODEC!r}) "
            f"only, not the 25 Hz one: use a Qwen3-TTS-12Hz checkpoint, such as {EXAMPLE}.",
            code="other_tokenizer",
        )


def _tokenizer(path: Path, faults: list[str]) -> Fields:
    """The speech tokenizer's config, after making sure that it is the 12 Hz one."""
    file = path / CODEC_FOLDER / "config.json"
    hint = f"The folder {CODEC_FOLDER} is part of the checkpoint: fetch it with its files."
    root = Fields(f"{file}: ", read_json(file, hint), faults)
    _refuse_other_codec(root, "model_type")
    if (rate := root.integer("output_sample_rate", SAMPLE_RATE)) != SAMPLE_RATE:
        root.fault("output_sample_rate", f"is {rate}; vivace speaks at {SAMPLE_RATE}")
    return root


def _codec(root: Fields) -> CodecSpec:
    d = root.child("decoder_config")
    return CodecSpec(
        latent=d.integer("latent_dim"),
        codebook_dim=d.integer("codebook_dim"),
        codebook_size=d.integer("codebook_size"),
        quantizers=d.integer("num_quantizers"),
        semantic_quantizers=d.integer("num_semantic_quantizers", 1),
        decoder_dim=d.integer("decoder_dim"),
        hidden=d.integer("hidden_size"),
        intermediate=d.integer("intermediate_size"),
        layers=d.integer("num_hidden_layers"),
        heads=d.integer("num_attention_heads"),
        kv_heads=d.integer("num_key_value_heads"),
        head_dim=d.integer("head_dim"),
        window=d.integer("sliding_window"),
        rope_theta=d.number("rope_theta"),
        rms_eps=d.number("rms_norm_eps"),
        upsample_rates=d.integers("upsample_rates"),
        upsampling_ratios=d.integers("upsampling_ratios"),
        encoder=root.child("encoder_config").data,
    )


def _encoder(root: Fields, codec: CodecSpec) -> EncoderSpec:
    """The encoder of the speech tokenizer, which only cloning needs."""
    e = root.child("encoder_config")
    fixed: dict[str, object] = {
        "audio_channels": 1,
        "hidden_act": "gelu",
        "pad_mode": "constant",
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "codebook_size": codec.codebook_size,
        "num_semantic_quantizers": codec.semantic_quantizers,
    }
    for name, value in fixed.items():
        if (found := e.data.get(name, value)) != value:
            e.fault(name, f"is {found!r}; vivace knows {value!r}")
    if (books := e.integer("num_quantizers")) < codec.quantizers:
        e.fault("num_quantizers", f"is {books}; the decoder takes {codec.quantizers}")
    spec = EncoderSpec(
        filters=e.integer("num_filters"),
        rates=e.integers("upsampling_ratios"),
        residuals=e.integer("num_residual_layers"),
        compress=e.integer("compress"),
        dilation_growth=e.integer("dilation_growth_rate"),
        kernel=e.integer("kernel_size"),
        residual_kernel=e.integer("residual_kernel_size"),
        last_kernel=e.integer("last_kernel_size"),
        hidden=e.integer("hidden_size"),
        intermediate=e.integer("intermediate_size"),
        layers=e.integer("num_hidden_layers"),
        heads=e.integer("num_attention_heads"),
        kv_heads=e.integer("num_key_value_heads"),
        head_dim=e.integer("head_dim"),
        rope_theta=e.number("rope_theta"),
        eps=e.number("norm_eps"),
        codebook_dim=e.integer("codebook_dim"),
    )
    if 2 * prod(spec.rates) != codec.frame_samples:
        e.fault("upsampling_ratios", f"are {[*spec.rates]}: not {codec.frame_samples} to a frame")
    return spec


def _spec(root: Fields, tokenizer: Fields, defaults: Sampling) -> ModelSpec:
    talker, codec = root.child("talker_config"), _codec(tokenizer)
    kind = root.text("tts_model_type")
    if kind not in KINDS and kind:
        root.fault("tts_model_type", f"is {kind!r}; known are {', '.join(KINDS)}")
    return ModelSpec(
        kind=kind,
        size=root.text("tts_model_size", ""),
        text_vocab=talker.integer("text_vocab_size"),
        text_hidden=talker.integer("text_hidden_size"),
        talker=_transformer(talker),
        predictor=_transformer(talker.child("code_predictor_config")),
        codebooks=talker.integer("num_code_groups"),
        text_ids=TextIds(
            im_start=root.integer("im_start_token_id"),
            im_end=root.integer("im_end_token_id"),
            assistant=root.integer("assistant_token_id"),
            tts_bos=root.integer("tts_bos_token_id"),
            tts_eos=root.integer("tts_eos_token_id"),
            tts_pad=root.integer("tts_pad_token_id"),
        ),
        codec_ids=CodecIds(
            bos=talker.integer("codec_bos_id"),
            eos=talker.integer("codec_eos_token_id"),
            pad=talker.integer("codec_pad_id"),
            think=talker.integer("codec_think_id"),
            nothink=talker.integer("codec_nothink_id"),
            think_bos=talker.integer("codec_think_bos_id"),
            think_eos=talker.integer("codec_think_eos_id"),
        ),
        languages=talker.ids("codec_language_id"),
        speakers=talker.ids("spk_id") if "spk_id" in talker or kind == "custom_voice" else {},
        dialects=_dialects(talker),
        codec=codec,
        speaker_encoder=_speaker(root.child("speaker_encoder_config")) if kind == "base" else None,
        defaults=defaults,
        piece_s=root.number("piece_s", PIECE_S),
        codec_encoder=_encoder(tokenizer, codec) if kind == "base" else None,
    )


def _transformer(f: Fields) -> TransformerSpec:
    return TransformerSpec(
        hidden=f.integer("hidden_size"),
        intermediate=f.integer("intermediate_size"),
        layers=f.integer("num_hidden_layers"),
        heads=f.integer("num_attention_heads"),
        kv_heads=f.integer("num_key_value_heads"),
        head_dim=f.integer("head_dim"),
        vocab=f.integer("vocab_size"),
        rope_theta=f.number("rope_theta"),
        rms_eps=f.number("rms_norm_eps"),
    )


def _speaker(f: Fields) -> SpeakerSpec:
    """Published configs give the dimension alone; the rest are the published tensors' shapes."""
    return SpeakerSpec(
        dim=f.integer("enc_dim"),
        mel_dim=f.integer("mel_dim", 128),
        channels=f.integers("enc_channels", (512, 512, 512, 512, 1536)),
        kernels=f.integers("enc_kernel_sizes", (5, 3, 3, 3, 1)),
        dilations=f.integers("enc_dilations", (1, 2, 3, 4, 1)),
        attention_channels=f.integer("enc_attention_channels", 128),
        res2net_scale=f.integer("enc_res2net_scale", 8),
        se_channels=f.integer("enc_se_channels", 128),
    )


def _dialects(talker: Fields) -> dict[str, str]:
    """Speakers that speak a dialect. Fine-tuned checkpoints may leave the whole field out."""
    if "spk_is_dialect" not in talker:
        return {}
    child = talker.child("spk_is_dialect")
    named = {key: value for key, value in child.data.items() if value is not False}
    return {key.lower(): child.text(key).lower() for key in named}


def _defaults(path: Path, faults: list[str]) -> Sampling:
    """generation_config.json, if there is one; what it leaves out is the published default."""
    file = path / "generation_config.json"
    if not file.exists():
        return Sampling()
    f, base = Fields(f"{file}: ", read_json(file, ""), faults), Sampling()
    temperature = f.number("temperature", base.temperature)
    subtalker_temperature = f.number("subtalker_temperature", base.subtalker_temperature)
    return Sampling(
        temperature=temperature if f.flag("do_sample", True) else 0.0,
        top_k=f.integer("top_k", base.top_k),
        top_p=f.number("top_p", base.top_p),
        repetition_penalty=f.number("repetition_penalty", base.repetition_penalty),
        subtalker_temperature=subtalker_temperature if f.flag("subtalker_dosample", True) else 0.0,
        subtalker_top_k=f.integer("subtalker_top_k", base.subtalker_top_k),
        subtalker_top_p=f.number("subtalker_top_p", base.subtalker_top_p),
        max_frames=f.integer("max_new_tokens", base.max_frames),
    )


def _contradictions(spec: ModelSpec) -> list[str]:
    """What cannot be true together, or not here. Such a checkpoint would fail once it speaks."""
    codec, talker = spec.codec, spec.talker
    faults = []
    if codec.frame_samples != SAMPLES_PER_FRAME:
        faults.append(
            f"a frame decodes to {codec.frame_samples} samples, and vivace works with "
            f"{SAMPLES_PER_FRAME}"
        )
    if spec.codebooks != codec.quantizers:
        faults.append(
            f"the talker makes {spec.codebooks} codes a frame, and the speech tokenizer takes "
            f"{codec.quantizers}"
        )
    if spec.predictor.vocab != codec.codebook_size:
        faults.append(
            f"the code predictor draws from {spec.predictor.vocab} codes, and the speech tokenizer "
            f"has {codec.codebook_size}"
        )
    if spec.speaker_encoder is not None and spec.speaker_encoder.dim != talker.hidden:
        faults.append(
            f"an x-vector has {spec.speaker_encoder.dim} numbers, and the talker takes "
            f"{talker.hidden}"
        )
    ids = {**asdict(spec.codec_ids), **spec.languages, **spec.speakers}
    for names, vocab in ((ids, talker.vocab), (asdict(spec.text_ids), spec.text_vocab)):
        faults += [f"id {i} of {n!r} is not below {vocab}" for n, i in names.items() if i >= vocab]
    if spec.piece_s <= 0.0:
        faults.append(f"piece_s is {spec.piece_s:g}; it must be above 0")
    unknown = {d for d in spec.dialects.values() if d not in spec.languages}
    return faults + [f"dialect {name!r} is not in codec_language_id" for name in sorted(unknown)]
