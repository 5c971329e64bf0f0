"""A widened checkpoint speaks like the tiny one it was made from."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from vivace.checkpoint.embedded import embedded
from vivace.checkpoint.presets import LANGUAGES, SIZES, SPEAKERS, config_files
from vivace.checkpoint.read import read_spec
from vivace.checkpoint.tensors import codec_tensors, model_tensors
from vivace.checkpoint.vocabulary import ADDED, published_vocabulary, vocabulary
from vivace.checkpoint.weights import ONE_FILE
from vivace.checkpoint.widen import wide_files, write_widened
from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.errors import CheckpointError
from vivace.model.spec import ModelSpec
from vivace.text.tokenize import Tokenizer
from vivace.types import Codes, FinishReason, Pcm, Sampling, SpeechRequest, TextMode

Tiny = Callable[..., Path]
TEXT = "Hello there, how are you today? It is 42 degrees, Mr. O'Neil's assistant says. We wait."
GREEDY = Sampling(temperature=0.0, subtalker_temperature=0.0)
# Every draw from the whole vocabulary, far from the likeliest, and shorter than the text.
WILD = Sampling(
    temperature=1.5,
    top_k=0,
    subtalker_temperature=1.5,
    subtalker_top_k=0,
    seed=7,
    max_frames=24,
)

# Wider than tiny everywhere, at little cost. Ratios are no powers of two where they need not be,
# and the heads of the speech tokenizer have none of the tiny heads' frequencies at the same theta.
MIDDLE: dict[str, dict[str, object]] = {
    "talker": {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "text_hidden_size": 320,
    },
    "predictor": {
        "hidden_size": 320,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 512,
    },
    "decoder": {
        "latent_dim": 256,
        "codebook_dim": 256,
        "codebook_size": 512,
        "decoder_dim": 512,
        "hidden_size": 256,
        "intermediate_size": 400,
        "head_dim": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "num_hidden_layers": 4,
    },
    "encoder": {**SIZES["tiny"]["encoder"], "codebook_size": 512},
}


@pytest.fixture(scope="module")
def source(tiny: Tiny) -> Path:
    return tiny(until_text=True)


@pytest.fixture(scope="module")
def widen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    def write(source: Path, **options: Any) -> Path:
        out = tmp_path_factory.mktemp("wide")
        write_widened(out, source, size="middle", **options)
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "middle", MIDDLE)  # type: ignore[arg-type]
        yield write


@pytest.fixture(scope="module")
def wide(source: Path, widen: Callable[..., Path]) -> Path:
    return widen(source, dtype="float32")


def speak(
    folder: Path,
    requests: list[SpeechRequest],
    *,
    dtype: str = "float32",
    reason: FinishReason = FinishReason.STOP,
) -> list[tuple[Codes, Pcm]]:
    """Codes [frames, 16] and sound of each, all of which end for this reason."""
    config = EngineConfig(threads=1, device="cpu", dtype=dtype, trim=False, slo_ttfa_s=600.0)
    with Engine(folder, config=config) as engine:
        sessions = [engine.say(TEXT, request) for request in requests]
        heard = [list(session) for session in sessions]
    assert {s.done.reason for s in sessions if s.done} == {reason}
    return [
        (np.concatenate([c.codes for c in chunks]), np.concatenate([c.pcm for c in chunks]))
        for chunks in heard
    ]


def snr_db(pcm: Pcm, close: Pcm) -> float:
    return 10.0 * float(np.log10((pcm**2).mean() / ((pcm - close) ** 2).mean()))


def test_speaks_like_the_voice_in_the_box(widen: Callable[..., Path]) -> None:
    """Greedy codes are the same up to the end of speech, and so is the sound."""
    requests = [SpeechRequest(text_mode=mode, sampling=GREEDY) for mode in TextMode]
    wide = widen(embedded(), dtype="float32")
    pairs = zip(speak(embedded(), requests), speak(wide, requests), strict=True)
    for (codes, pcm), (same, close) in pairs:
        assert len(codes) > 60
        np.testing.assert_array_equal(codes, same)
        assert snr_db(pcm, close) > 60.0


def test_draws_like_one_of_other_shapes(source: Path, wide: Path) -> None:
    """All codes are drawn by their id, and only that of the end of speech has moved."""
    request = SpeechRequest(
        voice="eric", instruct="Slowly.", text_mode=TextMode.WHOLE, sampling=WILD
    )
    ((codes, pcm),), ((same, close),) = (
        speak(folder, [request], reason=FinishReason.LENGTH) for folder in (source, wide)
    )
    np.testing.assert_array_equal(codes, same)
    assert snr_db(pcm, close) > 60.0


def test_bfloat16_draws_no_code_that_the_tiny_one_lacks(
    source: Path, widen: Callable[..., Path]
) -> None:
    request = SpeechRequest(sampling=WILD)
    ((codes, _),) = speak(widen(source), [request], dtype="bfloat16", reason=FinishReason.LENGTH)
    assert codes.max() < read_spec(source).predictor.vocab


def test_ids_are_the_published_ones(source: Path, wide: Path) -> None:
    spec = read_spec(wide)
    t, c = spec.text_ids, spec.codec_ids
    assert (t.im_start, t.im_end, t.assistant) == (151644, 151645, 77091)
    assert (t.tts_pad, t.tts_bos, t.tts_eos) == (151671, 151672, 151673)
    tiny = read_spec(source)
    moved = spec.predictor.vocab - tiny.predictor.vocab
    assert c.eos == tiny.codec_ids.eos + moved == 2150 - 2048 + 512
    assert {n: i - 512 + 2048 for n, i in spec.languages.items() if n in LANGUAGES} == LANGUAGES
    assert {n: i - 512 + 2048 for n, i in spec.speakers.items()} == SPEAKERS
    assert spec.dialects == tiny.dialects


def test_a_voice_of_its_own_keeps_its_name(copy: Path, widen: Callable[..., Path]) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["talker_config"] |= {"spk_id": {"Amy": 300}, "spk_is_dialect": {"Amy": False}}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "README.md").write_text("Amy's card")
    (copy / "generation_config.json").write_text('{"temperature": 0.7}')
    out = widen(copy)
    spec = read_spec(out)
    assert (spec.speakers, spec.defaults.temperature) == ({"amy": 300 - 256 + 512}, 0.7)
    assert (out / "README.md").read_text() == "Amy's card"


def test_text_becomes_the_same_tokens(source: Path, wide: Path) -> None:
    names = []
    for folder in (source, wide):
        vocab = json.loads((folder / "vocab.json").read_text())
        token = {i: name for name, i in vocab.items()}
        names.append(
            [token[i] for i in Tokenizer.from_dir(folder).encode(f"{TEXT}\n你好 <tts_pad>")]
        )
    assert names[0] == names[1]
    assert Tokenizer.from_dir(wide).encode("assistant\n") == [77091, 198]


def test_vocabulary_has_room_for_tokens_around_the_words() -> None:
    tokens = ["Ċ", "user", "assistant", *(f"w{i}" for i in range(2_000))]
    vocab = published_vocabulary(tokens)
    assert sorted(vocab.values()) == list(range(151_643 + len(ADDED)))
    assert [vocab[t] for t in tokens[:3]] == [198, 872, 77091]
    places = [vocab[t] for t in tokens[3:]]
    assert places == sorted(places) and places[-1] < 3_000


def spec_of(files: dict[str, Any], folder: Path) -> ModelSpec:
    for name, config in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(config))
    return read_spec(folder)


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design"])
def test_full_size_has_the_published_shapes_and_ids(kind: str, tiny: Tiny, tmp_path: Path) -> None:
    vocab, folder = vocabulary(published=True), tiny(kind=kind)
    published = spec_of(config_files("1.7b", kind, vocab), tmp_path)
    wide = spec_of(wide_files(folder, read_spec(folder), "1.7b", vocab), tmp_path)
    assert model_tensors(wide) == model_tensors(published)
    assert codec_tensors(wide.codec) == codec_tensors(published.codec)
    assert (wide.codec_ids, wide.text_ids) == (published.codec_ids, published.text_ids)
    assert (wide.speakers, wide.languages) == (published.speakers, published.languages)
    assert wide.talker == published.talker


def test_written_tensors_are_those_of_the_spec(wide: Path) -> None:
    with safe_open(wide / ONE_FILE, "np") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        assert all(np.isfinite(file.get_tensor(name)).all() for name in found)
    assert found == model_tensors(read_spec(wide))


def test_the_same_seed_gives_the_same_bytes(
    source: Path, wide: Path, widen: Callable[..., Path]
) -> None:
    again, other = (widen(source, seed=seed, dtype="float32") for seed in (0, 1))
    first, second, third = (digest(folder / ONE_FILE) for folder in (wide, again, other))
    assert first == second != third


def digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("custom_voice", {"size": "8b"}, "no size '8b'"),
        ("custom_voice", {"dtype": "float16"}, "no dtype of a widened checkpoint 'float16'"),
        ("custom_voice", {"size": "0.6b"}, "no projection between talker and code predictor"),
        ("custom_voice", {"size": "tiny"}, "to tiny, which is not wider. Choose 1.7b."),
        ("base", {}, "its speaker encoder cannot be widened"),
    ],
)
def test_refusals(
    kind: str, options: dict[str, str], expected: str, tiny: Tiny, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        write_widened(tmp_path / "out", tiny(kind=kind), **options)
    assert expected in caught.value.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("latent_dim", 96, "latent is 96, which does not divide 1024"),
        ("decoder_dim", 160, "decoder_dim is 160, which does not divide 1536"),
        ("upsample_rates", [8, 5, 3, 4], "has upsample_rates (8, 5, 3, 4)"),
    ],
)
def test_codec_that_does_not_fit(field: str, value: object, expected: str, copy: Path) -> None:
    file = copy / "speech_tokenizer" / "config.json"
    config = json.loads(file.read_text())
    config["decoder_config"][field] = value
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        write_widened(copy / "out", copy)
    assert expected in caught.value.message
