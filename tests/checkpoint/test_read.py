import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vivace.checkpoint.read import read_spec
from vivace.errors import CheckpointError
from vivace.types import Sampling

Edit = Callable[[dict[str, Any]], object]


def change(path: Path, edit: Edit) -> None:
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


def test_everything_comes_from_the_config(configs: Path) -> None:
    spec = read_spec(configs)
    assert (spec.kind, spec.size, spec.codebooks) == ("custom_voice", "tiny", 16)
    assert (spec.talker.hidden, spec.predictor.hidden, spec.talker.rope_theta) == (256, 192, 1e6)
    assert list(spec.speakers)[:2] == ["serena", "vivian"] and len(spec.speakers) == 9
    assert spec.dialects == {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
    assert spec.languages["english"] == 2050 - 2048 + 256
    assert spec.codec_ids.eos == 2150 - 2048 + 256
    assert spec.codec.frame_samples == 1920 and spec.codec.encoder["num_quantizers"] == 32
    assert spec.speaker_encoder is None
    assert spec.defaults == Sampling()


def test_fine_tuned_voices(configs: Path) -> None:
    def edit(c: dict[str, Any]) -> None:
        c["talker_config"]["spk_id"] = {"My_Voice": 300}
        del c["talker_config"]["spk_is_dialect"]

    change(configs / "config.json", edit)
    spec = read_spec(configs)
    assert spec.speakers == {"my_voice": 300}
    assert spec.dialects == {}


def test_base_gives_the_x_vector_size_alone(configs: Path) -> None:
    def edit(c: dict[str, Any]) -> None:
        c["tts_model_type"] = "base"
        c["speaker_encoder_config"] = {"enc_dim": 256, "sample_rate": 24000}

    change(configs / "config.json", edit)
    speaker = read_spec(configs).speaker_encoder
    assert speaker is not None
    assert (speaker.dim, speaker.channels, speaker.se_channels) == (256, (512,) * 4 + (1536,), 128)


def test_an_x_vector_that_the_talker_cannot_take(configs: Path) -> None:
    base = {"tts_model_type": "base", "speaker_encoder_config": {"enc_dim": 128}}
    change(configs / "config.json", lambda c: c.update(base))
    with pytest.raises(CheckpointError, match="x-vector has 128 numbers, and the talker takes 256"):
        read_spec(configs)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("num_filters", None, "num_filters is None, not int"),
        ("pad_mode", "reflect", "pad_mode is 'reflect'; vivace knows 'constant'"),
        ("use_conv_shortcut", True, "use_conv_shortcut is True; vivace knows False"),
        ("num_quantizers", 8, "num_quantizers is 8; the decoder takes 16"),
        ("upsampling_ratios", [8, 6, 5], "upsampling_ratios are [8, 6, 5]: not 1920 to a frame"),
    ],
)
def test_an_encoder_that_we_do_not_know_is_refused_where_it_is_needed(
    configs: Path, name: str, value: object, why: str
) -> None:
    def edit(c: dict[str, Any]) -> None:
        c["encoder_config"][name] = value

    change(configs / CODEC, edit)
    assert read_spec(configs).codec_encoder is None  # named voices need none
    base = {"tts_model_type": "base", "speaker_encoder_config": {"enc_dim": 256}}
    change(configs / "config.json", lambda c: c.update(base))
    with pytest.raises(CheckpointError) as caught:
        read_spec(configs)
    assert f"encoder_config.{why}" in caught.value.message


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Sampling()),
        ({}, Sampling()),
        ({"do_sample": False}, Sampling(temperature=0.0)),
        ({"subtalker_dosample": False}, Sampling(subtalker_temperature=0.0)),
        (
            {"temperature": 1, "top_k": 7, "top_p": 0.8, "repetition_penalty": 1.2},
            Sampling(temperature=1.0, top_k=7, top_p=0.8, repetition_penalty=1.2),
        ),
        (
            {"subtalker_temperature": 0.5, "subtalker_top_k": 9, "subtalker_top_p": 0.9},
            Sampling(subtalker_temperature=0.5, subtalker_top_k=9, subtalker_top_p=0.9),
        ),
        ({"max_new_tokens": 256, "top_k": None, "unknown": 1}, Sampling(max_frames=256)),
    ],
)
def test_generation_defaults(
    configs: Path, given: dict[str, object] | None, expected: Sampling
) -> None:
    path = configs / "generation_config.json"
    path.unlink()
    if given is not None:
        path.write_text(json.dumps(given))
    assert read_spec(configs).defaults == expected


CODEC = "speech_tokenizer/config.json"


def drop(*names: str) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        for name in names:
            *path, last = name.split(".")
            part = config
            for step in path:
                part = part[step]
            del part[last]

    return edit


def put(name: str, value: object) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        *path, last = name.split(".")
        for step in path:
            config = config[step]
        config[last] = value

    return edit


@pytest.mark.parametrize(
    ("file", "edit", "code", "expected"),
    [
        ("config.json", put("model_type", "llama"), "not_qwen3_tts", ["'llama'", "hub id"]),
        ("config.json", drop("model_type"), "not_qwen3_tts", ["None"]),
        (
            "config.json",
            put("tokenizer_type", "qwen3_tts_tokenizer_25hz"),
            "other_tokenizer",
            ["'qwen3_tts_tokenizer_25hz'", "not the 25 Hz one", "Qwen3-TTS-12Hz-1.7B"],
        ),
        (CODEC, put("model_type", "qwen3_tts_tokenizer_25hz"), "other_tokenizer", ["25hz"]),
        ("config.json", drop("tokenizer_type"), "config", ["tokenizer_type is missing"]),
        (
            "config.json",
            drop("talker_config.hidden_size", "talker_config.codec_bos_id", "tts_pad_token_id"),
            "config",
            [
                "config.json: talker_config.hidden_size is missing",
                "config.json: talker_config.codec_bos_id is missing",
                "config.json: tts_pad_token_id is missing",
            ],
        ),
        ("config.json", drop("talker_config"), "config", ["talker_config is missing"]),
        (
            "config.json",
            drop("talker_config.code_predictor_config.vocab_size"),
            "config",
            ["talker_config.code_predictor_config.vocab_size is missing"],
        ),
        (
            CODEC,
            drop("decoder_config.latent_dim"),
            "config",
            ["speech_tokenizer/config.json: decoder_config.latent_dim is missing"],
        ),
        ("config.json", drop("talker_config.spk_id"), "config", ["spk_id is missing"]),
        (
            "config.json",
            put("talker_config.hidden_size", "256"),
            "config",
            ["talker_config.hidden_size is '256', not int"],
        ),
        (
            "config.json",
            put("talker_config.head_dim", True),
            "config",
            ["talker_config.head_dim is True, not int"],
        ),
        (
            "config.json",
            put("talker_config.spk_id", {"amy": "first"}),
            "config",
            ["talker_config.spk_id.amy is 'first', not int"],
        ),
        (CODEC, put("decoder_config.upsample_rates", [8, "5"]), "config", ["list of integers"]),
        (
            "config.json",
            put("tts_model_type", "singer"),
            "config",
            ["'singer'", "custom_voice, voice_design, base"],
        ),
        ("config.json", put("tts_model_type", "base"), "config", ["speaker_encoder_config"]),
        ("config.json", put("talker_config.num_code_groups", 8), "config", ["8 codes", "16"]),
        (CODEC, put("decoder_config.codebook_size", 512), "config", ["256 codes", "512"]),
        (CODEC, put("decoder_config.upsample_rates", [8, 5, 4, 2]), "config", ["1280", "1920"]),
        (CODEC, put("output_sample_rate", 48000), "config", ["48000", "24000"]),
        (
            "config.json",
            put("talker_config.spk_id", {"amy": 5000}),
            "config",
            ["id 5000 of 'amy' is not below 1280"],
        ),
        ("config.json", put("tts_eos_token_id", 151673), "config", ["'tts_eos'", "below 512"]),
        (
            "config.json",
            put("talker_config.spk_is_dialect", {"amy": "klingon"}),
            "config",
            ["'klingon' is not in codec_language_id"],
        ),
        ("config.json", put("piece_s", 0.0), "config", ["piece_s is 0"]),
        (
            "generation_config.json",
            put("temperature", "hot"),
            "config",
            ["generation_config.json: temperature is 'hot', not float"],
        ),
    ],
)
def test_unusable_config(
    configs: Path, file: str, edit: Edit, code: str, expected: list[str]
) -> None:
    change(configs / file, edit)
    with pytest.raises(CheckpointError) as caught:
        read_spec(configs)
    assert caught.value.code == code
    for part in expected:
        assert part in caught.value.message


@pytest.mark.parametrize("file", ["config.json", CODEC, "generation_config.json"])
@pytest.mark.parametrize("content", [b"", b'{"model_type": "qwen3', b"[1]", b"\xff\xfe"])
def test_malformed_json(configs: Path, file: str, content: bytes) -> None:
    (configs / file).write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_spec(configs)
    assert caught.value.code == "malformed"
    assert str(configs / file) in caught.value.message
    assert "Fetch the file again" in caught.value.message


@pytest.mark.parametrize(("file", "hint"), [("config.json", "hub id"), (CODEC, "part of the ch")])
def test_missing_file(configs: Path, file: str, hint: str) -> None:
    (configs / file).unlink()
    with pytest.raises(CheckpointError) as caught:
        read_spec(configs)
    assert caught.value.code == "missing_file"
    assert str(configs / file) in caught.value.message and hint in caught.value.message


def test_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_spec(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="does not exist"):
        read_spec(tmp_path / "file")
