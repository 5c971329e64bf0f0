"""The published layout at the smallest useful size: tokenizer files and configs, without weights.

Every key is one of the published files'; only sizes differ. Codec ids are the published ones moved
down by what the smaller codebook lacks, so the same ranges are suppressed and special.
"""

import json
from pathlib import Path
from typing import Any

CODEBOOK = 128  # entries of each codebook; 2048 in the published checkpoints
HIDDEN = 24

# --- a byte-level BPE tokenizer in Qwen's file layout

WORDS = (
    *("assistant", "user", "Hello", " world", " this", " is", " test", " reference", " sentence"),
    *("Very", " happy", " calm", " low", " male", " voice", "你好", "世界", "今天", "天气", "很好"),
    *("，", "。"),
)
SPECIALS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>"),
    *("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>"),
)


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in byte-level BPE files."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b if b in shown else 256 + hidden.index(b)) for b in range(256)]


def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Ids of all pieces, and the merges that build each of WORDS from left to right."""
    letters = byte_letters()
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS:
        left, *rest = (letters[b] for b in word.encode())
        for right in rest:
            merges[left, right] = None
            left += right
    pieces = [*sorted(letters), *dict.fromkeys(a + b for a, b in merges)]
    return {piece: i for i, piece in enumerate(pieces)}, list(merges)


VOCABULARY, MERGES = vocabulary()
TEXT_IDS = VOCABULARY | {token: len(VOCABULARY) + i for i, token in enumerate(SPECIALS)}


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(out: Path) -> None:
    write_json(out / "vocab.json", VOCABULARY)
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in MERGES)]
    (out / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    plain = dict(lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
    config = dict(
        add_bos_token=False,
        add_prefix_space=False,
        added_tokens_decoder={
            str(TEXT_IDS[token]): {"content": token, **plain} for token in SPECIALS
        },
        additional_special_tokens=SPECIALS[1:],
        bos_token=None,
        clean_up_tokenization_spaces=False,
        eos_token="<|im_end|>",
        errors="replace",
        model_max_length=131072,
        pad_token="<|endoftext|>",
        processor_class="Qwen3TTSProcessor",
        split_special_tokens=False,
        tokenizer_class="Qwen2Tokenizer",
        unk_token=None,
    )
    write_json(out / "tokenizer_config.json", config)


# --- configs: the published keys, small shapes

CODEC_BASE = 2048 - CODEBOOK  # the published codec ids, moved down by what the codebook lacks
LANGUAGES = {"english": 2050, "german": 2053, "chinese": 2055, "japanese": 2058}
DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {"vivian": 3065, "ryan": 3061, "eric": 2875, "dylan": 2878}
SPEAKER_DIALECTS = {
    "vivian": False,
    "ryan": False,
    "eric": "sichuan_dialect",
    "dylan": "beijing_dialect",
}
CODEC_IDS = dict(
    codec_pad_id=2148,
    codec_bos_id=2149,
    codec_eos_token_id=2150,
    codec_think_id=2154,
    codec_nothink_id=2155,
    codec_think_bos_id=2156,
    codec_think_eos_id=2157,
)


def lowered(ids: dict[str, int]) -> dict[str, int]:
    return {name: i - CODEC_BASE for name, i in ids.items()}


def stack(hidden: int, layers: int, heads: int, kv_heads: int, vocab: int) -> dict[str, Any]:
    """The keys that the talker and the predictor have in common."""
    return dict(
        attention_bias=False,
        attention_dropout=0,
        head_dim=8,
        hidden_act="silu",
        hidden_size=hidden,
        initializer_range=0.02,
        intermediate_size=hidden + 8,
        max_position_embeddings=32768,
        num_attention_heads=heads,
        num_code_groups=16,
        num_hidden_layers=layers,
        num_key_value_heads=kv_heads,
        rms_norm_eps=1e-6,
        rope_theta=1000000,
        sliding_window=None,
        use_cache=True,
        use_sliding_window=False,
        vocab_size=vocab,
    )


def talker_config(named: bool, predictor_hidden: int) -> dict[str, Any]:
    predictor = stack(predictor_hidden, 2, 4, 2, CODEBOOK)
    return dict(
        stack(HIDDEN, 2, 4, 2, CODEBOOK + 1024),
        model_type="qwen3_tts_talker",
        position_id_per_seconds=13,
        rope_scaling=dict(
            interleaved=True, mrope_section=[2, 1, 1], rope_type="default", type="default"
        ),
        text_hidden_size=16,
        text_vocab_size=len(TEXT_IDS),
        codec_language_id=lowered(LANGUAGES | (DIALECTS if named else {})),
        spk_id=lowered(SPEAKERS) if named else {},
        spk_is_dialect=SPEAKER_DIALECTS if named else {},
        code_predictor_config=dict(
            predictor,
            model_type="qwen3_tts_talker_code_predictor",
            layer_types=["full_attention"] * predictor["num_hidden_layers"],
            max_window_layers=28,
            rope_scaling=None,
        ),
        **lowered(CODEC_IDS),
    )


SPEAKER_ENCODER = dict(
    enc_dim=HIDDEN,
    mel_dim=128,
    sample_rate=24000,
    enc_channels=[16, 16, 16, 16, 48],
    enc_kernel_sizes=[5, 3, 3, 3, 1],
    enc_dilations=[1, 2, 3, 4, 1],
    enc_attention_channels=8,
    enc_res2net_scale=8,
    enc_se_channels=8,
)


def model_config(kind: str, size: str) -> dict[str, Any]:
    return dict(
        architectures=["Qwen3TTSForConditionalGeneration"],
        model_type="qwen3_tts",
        tokenizer_type="qwen3_tts_tokenizer_12hz",
        transformers_version="4.57.3",
        tts_model_size=size,
        tts_model_type=kind,
        assistant_token_id=TEXT_IDS["assistant"],
        im_start_token_id=TEXT_IDS["<|im_start|>"],
        im_end_token_id=TEXT_IDS["<|im_end|>"],
        tts_bos_token_id=TEXT_IDS["<tts_text_bos>"],
        tts_eos_token_id=TEXT_IDS["<tts_text_eod>"],
        tts_pad_token_id=TEXT_IDS["<tts_pad>"],
        talker_config=talker_config(kind == "custom_voice", HIDDEN if size == "0b6" else 16),
        **({"speaker_encoder_config": SPEAKER_ENCODER} if kind == "base" else {}),
    )


CODEC_CONFIG = dict(
    architectures=["Qwen3TTSTokenizerV2Model"],
    model_type="qwen3_tts_tokenizer_12hz",
    transformers_version="4.57.3",
    decode_upsample_rate=1920,
    encode_downsample_rate=1920,
    encoder_valid_num_quantizers=16,
    input_sample_rate=24000,
    output_sample_rate=24000,
    decoder_config=dict(
        attention_bias=False,
        attention_dropout=0.0,
        codebook_dim=16,
        codebook_size=CODEBOOK,
        decoder_dim=32,
        head_dim=8,
        hidden_act="silu",
        hidden_size=16,
        intermediate_size=24,
        latent_dim=20,
        layer_scale_initial_scale=0.01,
        max_position_embeddings=8000,
        num_attention_heads=2,
        num_hidden_layers=2,
        num_key_value_heads=2,
        num_quantizers=16,
        num_semantic_quantizers=1,
        rms_norm_eps=1e-5,
        rope_theta=10000,
        semantic_codebook_size=4096,
        sliding_window=72,
        upsample_rates=[8, 5, 4, 3],
        upsampling_ratios=[2, 2],
        vector_quantization_hidden_dimension=16,
    ),
    encoder_config=dict(
        model_type="mimi",
        attention_bias=False,
        attention_dropout=0.0,
        audio_channels=1,
        codebook_dim=8,
        codebook_size=CODEBOOK,
        compress=2,
        dilation_growth_rate=2,
        frame_rate=12.5,
        head_dim=8,
        hidden_act="gelu",
        hidden_size=16,
        intermediate_size=24,
        kernel_size=7,
        last_kernel_size=3,
        layer_scale_initial_scale=0.01,
        max_position_embeddings=8000,
        norm_eps=1e-5,
        num_attention_heads=2,
        num_filters=2,
        num_hidden_layers=2,
        num_key_value_heads=2,
        num_quantizers=20,  # more than the 16 in use, as in the published one
        num_residual_layers=1,
        num_semantic_quantizers=1,
        pad_mode="constant",
        residual_kernel_size=3,
        rope_theta=10000.0,
        sampling_rate=24000,
        sliding_window=250,
        trim_right_ratio=1.0,
        upsample_groups=16,
        upsampling_ratios=[8, 6, 5, 4],
        use_cache=False,
        use_causal_conv=True,
        use_conv_shortcut=False,
        use_streaming=False,
        vector_quantization_hidden_dimension=8,
    ),
)
GENERATION = dict(
    do_sample=True,
    max_new_tokens=8192,
    repetition_penalty=1.05,
    subtalker_dosample=True,
    subtalker_temperature=0.9,
    subtalker_top_k=50,
    subtalker_top_p=1.0,
    temperature=0.9,
    top_k=50,
    top_p=1.0,
)

PREPROCESSOR = dict(
    padding_side="left",
    padding_value=0.0,
    processor_class="Qwen3TTSProcessor",
    return_attention_mask=True,
)
CODEC_PREPROCESSOR = dict(
    chunk_length_s=None,
    feature_extractor_type="EncodecFeatureExtractor",
    feature_size=1,
    overlap=None,
    padding_side="right",
    padding_value=0.0,
    return_attention_mask=True,
    sampling_rate=24000,
)
