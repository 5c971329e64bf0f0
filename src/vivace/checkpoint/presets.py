"""The config files of a synthetic checkpoint: the published ones, in full or tiny."""

from collections.abc import Mapping
from typing import Any

Config = dict[str, Any]

CODES = 2048  # entries of a published codebook; the talker's special ids come after its codes
LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
SPEAK_DIALECT = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
CODEC_IDS = {
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_pad_id": 2148,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
}
TEXT_IDS = {
    "im_start_token_id": "<|im_start|>",
    "im_end_token_id": "<|im_end|>",
    "assistant_token_id": "assistant",
    "tts_pad_token_id": "<tts_pad>",
    "tts_bos_token_id": "<tts_text_bos>",
    "tts_eos_token_id": "<tts_text_eod>",
}
TALKER: Config = {
    "model_type": "qwen3_tts_talker",
    "attention_bias": False,
    "attention_dropout": 0,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "use_cache": True,
    "text_vocab_size": 151936,
    "text_hidden_size": 2048,
    "num_code_groups": 16,
    "position_id_per_seconds": 13,
}
PREDICTOR: Config = {
    "model_type": "qwen3_tts_talker_code_predictor",
    "attention_bias": False,
    "attention_dropout": 0,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "initializer_range": 0.02,
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "use_cache": True,
    "vocab_size": CODES,
    "num_code_groups": 16,
}
SPEAKER: Config = {
    "sample_rate": 24000,
    "mel_dim": 128,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}
CODEC: Config = {
    "architectures": ["Qwen3TTSTokenizerV2Model"],
    "model_type": "qwen3_tts_tokenizer_12hz",
    "encoder_valid_num_quantizers": 16,
    "input_sample_rate": 24000,
    "output_sample_rate": 24000,
    "decode_upsample_rate": 1920,
    "encode_downsample_rate": 1920,
    "transformers_version": "4.57.3",
}
ENCODER: Config = {
    "model_type": "mimi",
    "audio_channels": 1,
    "sampling_rate": 24000,
    "frame_rate": 12.5,
    "num_filters": 64,
    "hidden_size": 512,
    "num_residual_layers": 1,
    "upsampling_ratios": [8, 6, 5, 4],
    "kernel_size": 7,
    "last_kernel_size": 3,
    "residual_kernel_size": 3,
    "dilation_growth_rate": 2,
    "use_causal_conv": True,
    "pad_mode": "constant",
    "compress": 2,
    "trim_right_ratio": 1.0,
    "codebook_size": CODES,
    "codebook_dim": 256,
    "num_quantizers": 32,
    "use_conv_shortcut": False,
    "vector_quantization_hidden_dimension": 256,
    "num_semantic_quantizers": 1,
    "upsample_groups": 512,
    "num_hidden_layers": 8,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "gelu",
    "max_position_embeddings": 8000,
    "norm_eps": 1e-5,
    "use_cache": False,
    "use_streaming": False,
    "rope_theta": 10000.0,
    "sliding_window": 250,
    "attention_dropout": 0.0,
    "layer_scale_initial_scale": 0.01,
    "attention_bias": False,
}
DECODER: Config = {
    "latent_dim": 1024,
    "codebook_dim": 512,
    "codebook_size": CODES,
    "decoder_dim": 1536,
    "hidden_act": "silu",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "layer_scale_initial_scale": 0.01,
    "max_position_embeddings": 8000,
    "head_dim": 64,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 8,
    "num_quantizers": 16,
    "num_semantic_quantizers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "semantic_codebook_size": 4096,
    "sliding_window": 72,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "vector_quantization_hidden_dimension": 512,
}
GENERATION: Config = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
PREPROCESSOR: Config = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}
CODEC_PREPROCESSOR: Config = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}

# What a size has other than the published 1.7B.
SIZES: Mapping[str, Mapping[str, Config]] = {
    "1.7b": {},
    "0.6b": {
        "root": {"tts_model_size": "0b6"},
        "talker": {"hidden_size": 1024, "intermediate_size": 3072},
    },
    "tiny": {
        "root": {"tts_model_size": "tiny"},
        "talker": {
            "hidden_size": 256,
            "intermediate_size": 640,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "text_vocab_size": 512,
            "text_hidden_size": 256,
        },
        "predictor": {
            "hidden_size": 192,
            "intermediate_size": 384,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 48,
            "vocab_size": 256,
        },
        "decoder": {
            "latent_dim": 128,
            "codebook_dim": 128,
            "codebook_size": 256,
            "decoder_dim": 256,
            "hidden_size": 128,
            "intermediate_size": 256,
            "head_dim": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "semantic_codebook_size": 256,
            "vector_quantization_hidden_dimension": 128,
        },
        "encoder": {
            "num_filters": 8,
            "hidden_size": 64,
            "codebook_dim": 32,
            "codebook_size": 256,
            "vector_quantization_hidden_dimension": 32,
            "upsample_groups": 64,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
        },
        "speaker": {
            "enc_channels": [64, 64, 64, 64, 192],
            "enc_attention_channels": 32,
            "enc_se_channels": 32,
        },
    },
}


def config_files(size: str, kind: str, vocab: Mapping[str, int]) -> dict[str, Config]:
    """The JSON files of the layout, the tokenizer's aside, by their path in the folder."""
    overlay = SIZES[size]
    predictor = PREDICTOR | overlay.get("predictor", {})
    predictor["layer_types"] = ["full_attention"] * predictor["num_hidden_layers"]
    talker = TALKER | overlay.get("talker", {}) | _voices(kind, predictor["vocab_size"])
    talker["rope_scaling"] = _rope_scaling(talker["head_dim"] // 2)
    talker["code_predictor_config"] = predictor
    root = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": CODEC["model_type"],
        "tts_model_size": "1b7",
        "tts_model_type": kind,
        "transformers_version": "4.57.3",
        **{name: vocab[token] for name, token in TEXT_IDS.items()},
        "talker_config": talker,
        **overlay.get("root", {}),
    }
    if kind == "base":
        speaker = SPEAKER | overlay.get("speaker", {}) | {"enc_dim": talker["hidden_size"]}
        root["speaker_encoder_config"] = speaker
    codec = {
        "encoder_config": ENCODER | overlay.get("encoder", {}),
        "decoder_config": DECODER | overlay.get("decoder", {}),
    }
    return {
        "config.json": root,
        "generation_config.json": GENERATION,
        "preprocessor_config.json": PREPROCESSOR,
        "speech_tokenizer/config.json": CODEC | codec,
        "speech_tokenizer/configuration.json": {"framework": "pytorch"},
        "speech_tokenizer/preprocessor_config.json": CODEC_PREPROCESSOR,
    }


def _voices(kind: str, codes: int) -> Config:
    """The talker's special ids, languages and speakers, which stand above its `codes`."""
    named = kind == "custom_voice"

    def above(ids: Mapping[str, int]) -> dict[str, int]:
        return {name: i - CODES + codes for name, i in ids.items()}

    return {
        "vocab_size": codes + 1024,
        **above(CODEC_IDS),
        "codec_language_id": above(LANGUAGES | (DIALECTS if named else {})),
        "spk_id": above(SPEAKERS) if named else {},
        "spk_is_dialect": {s: SPEAK_DIALECT.get(s, False) for s in SPEAKERS} if named else {},
    }


def _rope_scaling(dims: int) -> Config:
    """The three axes that share `dims` rotations. They are equal here, so it changes nothing."""
    third = dims * 5 // 16
    sections = [dims - 2 * third, third, third]
    return {
        "interleaved": True,
        "mrope_section": sections,
        "rope_type": "default",
        "type": "default",
    }
