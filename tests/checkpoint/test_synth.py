import hashlib
import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from vivace.checkpoint.noise import CodecNoise, Noise
from vivace.checkpoint.presets import config_files
from vivace.checkpoint.read import read_spec
from vivace.checkpoint.synth import write_synthetic
from vivace.checkpoint.tensors import Shape, codec_tensors, model_tensors
from vivace.checkpoint.vocabulary import ADDED, vocabulary
from vivace.checkpoint.weights import ONE_FILE
from vivace.checkpoint.wiring import COIN, COUNT, STEADY, LanguageModel
from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.errors import CheckpointError
from vivace.model.codec import Codec
from vivace.model.spec import ModelSpec
from vivace.text.tokenize import Tokenizer
from vivace.types import FinishReason, Sampling, SpeechRequest, TextMode

Tiny = Callable[..., Path]
TEXT = "Hello there, how are you today?"
LAYOUT = [
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "preprocessor_config.json",
    "speech_tokenizer/config.json",
    "speech_tokenizer/configuration.json",
    "speech_tokenizer/model.safetensors",
    "speech_tokenizer/preprocessor_config.json",
    "tokenizer_config.json",
    "vocab.json",
]


def spec_of(folder: Path, size: str, kind: str) -> ModelSpec:
    """The spec that the config files of a size and kind give, without weights."""
    vocab = vocabulary(published=size != "tiny")
    for name, config in config_files(size, kind, vocab).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(config))
    return read_spec(folder)


def digest(tensors: dict[str, Shape]) -> str:
    lines = (f"{name} {list(shape)}" for name, shape in sorted(tensors.items()))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


# Count of tensors, count of numbers and digest of the names and shapes of the published files.
@pytest.mark.parametrize(
    ("size", "kind", "published"),
    [
        ("1.7b", "custom_voice", (404, 1_916_676_352, "895986a06edd89e8")),
        ("0.6b", "custom_voice", (402, 905_788_672, "d0d3449a757be69f")),
        ("1.7b", "base", (480, 1_928_677_440, "7474e322be7aef10")),
        ("0.6b", "base", (478, 914_643_008, "0ad366b8bd510f06")),
    ],
)
def test_tensors_are_the_published_ones(
    size: str, kind: str, published: tuple[int, int, str], tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, size, kind)
    tensors, codec = model_tensors(spec), codec_tensors(spec.codec)
    assert (len(tensors), sum(map(prod, tensors.values())), digest(tensors)) == published
    assert (len(codec), sum(map(prod, codec.values()))) == (496, 170_557_441)
    assert digest(codec) == "47af3a1e193f97be"


def test_published_ids(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "1.7b", "custom_voice")
    t, c = spec.text_ids, spec.codec_ids
    assert (t.im_start, t.im_end, t.assistant) == (151644, 151645, 77091)
    assert (t.tts_pad, t.tts_bos, t.tts_eos) == (151671, 151672, 151673)
    assert (c.pad, c.bos, c.eos, c.think) == (2148, 2149, 2150, 2154)
    assert (spec.speakers["serena"], spec.languages["sichuan_dialect"]) == (3066, 2062)


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design", "base"])
def test_files_of_the_layout(kind: str, tiny: Tiny) -> None:
    folder = tiny(kind=kind)
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert files == LAYOUT
    spec = read_spec(folder)
    assert (spec.kind, bool(spec.speakers)) == (kind, kind == "custom_voice")
    assert ("beijing_dialect" in spec.languages) == (kind == "custom_voice")
    for part, tensors, dtype in (
        (folder, model_tensors(spec), "BF16"),
        (folder / "speech_tokenizer", codec_tensors(spec.codec), "F32"),
    ):
        with safe_open(part / ONE_FILE, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            assert {n: tuple(s.get_shape()) for n, s in slices.items()} == tensors
            assert {s.get_dtype() for s in slices.values()} == {dtype}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_stored_dtype(dtype: str, tiny: Tiny) -> None:
    with safe_open(tiny(dtype=dtype) / ONE_FILE, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}
    assert [name for name, tensor in tensors.items() if not tensor.isfinite().all()] == []


def test_a_seed_gives_the_same_bytes(tiny: Tiny, tmp_path: Path) -> None:
    write_synthetic(tmp_path / "again", seed=3)
    again, other = tmp_path / "again", tiny(seed=4)
    first = tiny(seed=3)
    for name in LAYOUT:
        assert (first / name).read_bytes() == (again / name).read_bytes()
    for name in ("model.safetensors", "speech_tokenizer/model.safetensors"):
        assert (first / name).read_bytes() != (other / name).read_bytes()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size": "8b"}, "no size '8b'. Choose from 1.7b, 0.6b, tiny"),
        ({"kind": "singer"}, "no kind 'singer'. Choose from custom_voice"),
        ({"dtype": "int8"}, "no dtype 'int8'. Choose from bfloat16"),
        ({"mean_frames": 2.0}, "mean_frames is 2"),
    ],
)
def test_refusals(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        write_synthetic(tmp_path / "out", **options)
    assert expected in caught.value.message
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not empty"):
        write_synthetic(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_synthetic(tmp_path / "notes.txt" / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("published", [True, False])
def test_vocabulary_is_dense_and_in_order(published: bool) -> None:
    vocab = vocabulary(published=published)
    assert sorted(vocab.values()) == list(range(len(vocab)))
    assert vocab["Ċ"] == 198 and vocab["!"] == 0
    assert [vocab[token] for token in ADDED] == list(range(len(vocab) - len(ADDED), len(vocab)))
    if published:
        assert (vocab["user"], vocab["assistant"], len(vocab)) == (872, 77091, 151676)


def test_tokens_are_characters_but_for_the_prompts_words(tiny: Tiny) -> None:
    folder = tiny(until_text=True)
    tokenizer, spec = Tokenizer.from_dir(folder), read_spec(folder)
    assert tokenizer.encode("assistant\n") == [spec.text_ids.assistant, 198]
    assert len(tokenizer.encode("user\n")) == 2
    assert len(tokenizer.encode(TEXT)) == len(TEXT)
    assert len(tokenizer.encode("<|im_end|>")) > 1


def frames(folder: Path, requests: list[tuple[str, SpeechRequest]]) -> list[int]:
    """How many frames each request speaks, none of them cut short."""
    with Engine(folder, config=EngineConfig(threads=1, slo_ttfa_s=600.0)) as engine:
        sessions = [engine.say(text, request) for text, request in requests]
        for session in sessions:
            list(session)
    done = [session.done for session in sessions]
    assert {d.reason for d in done if d is not None} == {FinishReason.STOP}
    return [d.frames for d in done if d is not None]


def test_speech_ends_with_its_text(tiny: Tiny) -> None:
    texts = ["Hi.", TEXT, "你好，世界。", f"{TEXT} " * 3 + TEXT]
    requests = [
        (text, SpeechRequest(text_mode=mode, sampling=Sampling(seed=seed), **options))
        for mode in TextMode
        for seed, text in enumerate(texts)
        for options in (
            {},
            {"voice": "eric", "instruct": "Slowly, with long pauses, and then some more."},
        )
    ]
    tokens = [len(text.encode()) for text, _ in requests]
    made = frames(tiny(until_text=True), requests)
    assert all(n < f <= n + 4 for n, f in zip(tokens, made, strict=True)), (tokens, made)


@pytest.mark.parametrize("mode", TextMode)
def test_designed_speech_ends_with_its_text(mode: TextMode, tiny: Tiny) -> None:
    request = SpeechRequest(text_mode=mode, instruct="A calm voice.", sampling=Sampling(seed=2))
    (made,) = frames(tiny(kind="voice_design", until_text=True), [(TEXT, request)])
    assert len(TEXT) < made <= len(TEXT) + 3


def test_fine_tuned_voice_speaks(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["talker_config"] |= {"spk_id": {"Amy": 300}, "spk_is_dialect": {"Amy": False}}
    (copy / "config.json").write_text(json.dumps(config))
    (made,) = frames(copy, [("Hi.", SpeechRequest(voice="Amy"))])
    assert made > 3


def test_mean_length(tiny: Tiny) -> None:
    """32 draws of about 6 frames: a standard error of 0.9."""
    requests = [
        (TEXT, SpeechRequest(guards=False, sampling=Sampling(seed=seed))) for seed in range(32)
    ]
    made = frames(tiny(mean_frames=6.0), requests)
    assert 4.0 < np.mean(made) < 8.0
    assert min(made) >= 2 and max(made) > 9


def tensors_of(spec: ModelSpec, mean_frames: float | None) -> Callable[[str], torch.Tensor]:
    make, shapes = LanguageModel(spec, Noise(0, torch.float32), mean_frames), model_tensors(spec)
    return lambda name: make(name, shapes[name])


def test_odds_of_the_end_are_as_asked(tmp_path: Path) -> None:
    """With codes drawn alike, COIN crosses the threshold of the end once in 29 frames."""
    spec = spec_of(tmp_path, "tiny", "custom_voice")
    tensor = tensors_of(spec, 30.0)
    base = "talker.code_predictor.model.codec_embedding"
    coins = torch.stack([tensor(f"{base}.{i}.weight")[:, COIN] for i in range(15)])
    codes = torch.randint(256, (200_000, 15), generator=torch.Generator().manual_seed(0))
    coin = coins[torch.arange(15), codes].sum(1)
    # What reaches the end's logit from COIN at its threshold, and from the constant, cancels out.
    end = tensor("talker.codec_head.weight")[spec.codec_ids.eos]
    end = end * tensor("talker.model.norm.weight")
    steady = tensor("talker.text_projection.linear_fc2.bias")[STEADY]
    threshold = -end[STEADY] * steady / end[COIN]
    assert torch.count_nonzero(end) == 2
    assert threshold.item() == pytest.approx(NormalDist().inv_cdf(1 - 1 / 29), rel=1e-4)
    assert (coin > threshold).float().mean().item() * 29 == pytest.approx(1.0, abs=0.1)


def test_x_vector_counts_like_a_speaker(tmp_path: Path) -> None:
    tensor = tensors_of(spec_of(tmp_path, "tiny", "base"), None)
    weight, bias = (tensor(f"speaker_encoder.fc.{part}") for part in ("weight", "bias"))
    assert bias[COUNT] == 1.0 and not weight[COUNT].any() and not weight[COIN].any()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sound_is_audible_and_not_clipped(seed: int, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "tiny", "custom_voice").codec
    make = CodecNoise(spec, Noise(seed, torch.float32))
    make.calibrate()
    codec = Codec(spec)
    codes = torch.randint(256, (1, 75, 16), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        codec.load(lambda name, *shape: make(name, shape))
        pcm, _ = codec(codes, codec.fresh(1))
    pcm = pcm[0].numpy()
    assert 0.08 < pcm.std() < 0.2
    assert abs(pcm).max() < 1.0 and abs(pcm.mean()) < 0.01
    seconds = pcm.reshape(6, -1).std(1)
    assert seconds.min() > 0.05
    power = abs(np.fft.rfft(pcm)) ** 2
    hertz = np.fft.rfftfreq(len(pcm), 1 / 24_000)
    voice = (hertz > 100) & (hertz < 4_000)
    assert power[voice].sum() > 0.7 * power.sum()
