"""Writes a tiny checkpoint at full size: the published shapes, names and ids, the same speech."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivace.checkpoint.fields import read_json
from vivace.checkpoint.inlay import rope_theta
from vivace.checkpoint.noise import Noise
from vivace.checkpoint.presets import CODEC_IDS, SIZES, Config, config_files
from vivace.checkpoint.read import CODEC_FOLDER, read_spec
from vivace.checkpoint.synth import check_choice, claim, write_tensors
from vivace.checkpoint.tensors import Shape, codec_tensors, model_tensors
from vivace.checkpoint.twin import CodecTwin, LanguageModelTwin
from vivace.checkpoint.vocabulary import published_vocabulary, write_tokenizer
from vivace.checkpoint.weights import ONE_FILE, Weights
from vivace.errors import CheckpointError
from vivace.model.layers import Take
from vivace.model.spec import CodecSpec, ModelSpec, TransformerSpec

SPECIAL = 1024  # ids of the talker's vocabulary above its codes
DTYPES = ("bfloat16", "float32")  # float16 does not reach the numbers that hold spare ids down
UNFIT = {
    "tiny": "is not wider",
    "0.6b": "has no projection between talker and code predictor",
}
KEPT = ("generation_config.json", "merges.txt", "README.md", "LICENSE", "NOTICE")


def write_widened(
    out: Path, source: Path, *, size: str = "1.7b", seed: int = 0, dtype: str = "bfloat16"
) -> None:
    """Write the checkpoint in `source`, at `size`, into the new or empty folder `out`.

    Its greedy codes and its sound are those of `source`. `seed` is for the random numbers where
    `source` has nothing; `dtype` is that of talker and predictor, the speech tokenizer is in
    float32, as published. One wide tensor is held at a time.

    Raises CheckpointError for what it does not know, a source that does not fit into the size, and
    a folder in use.
    """
    check_choice("size", size, SIZES)
    if size in UNFIT:
        raise CheckpointError(
            f"Nothing can be widened to {size}, which {UNFIT[size]}. Choose 1.7b."
        )
    check_choice("dtype of a widened checkpoint", dtype, DTYPES)
    tiny, tokens = read_spec(source), _tokens(source)
    vocab = published_vocabulary(tokens)
    files = wide_files(source, tiny, size, vocab)
    wide = _spec(files)
    if faults := list(_misfits(tiny, wide)):
        raise CheckpointError(f"{source} cannot be written at size {size}: {'; '.join(faults)}.")
    claim(out)
    _write_files(out, files)
    write_tokenizer(out, vocab)
    for name in KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    text_ids = {i: vocab[token] for token, i in tokens.items()}
    text_ids |= dict(zip(astuple(tiny.text_ids), astuple(wide.text_ids), strict=True))
    _write_language_model(out, source, tiny, wide, text_ids, Noise(seed, getattr(torch, dtype)))
    _write_codec(out, source, tiny.codec, wide.codec, Noise(seed, torch.float32))


def wide_files(
    source: Path, tiny: ModelSpec, size: str, vocab: Mapping[str, int]
) -> dict[str, Config]:
    """The config files, with the published shapes and the ids, voices and languages of `source`."""
    files = config_files(size, tiny.kind, vocab)
    files["config.json"]["piece_s"] = tiny.piece_s
    talker = files["config.json"]["talker_config"]
    predictor = talker["code_predictor_config"]
    decoder = files[f"{CODEC_FOLDER}/config.json"]["decoder_config"]
    stacks: list[tuple[Config, TransformerSpec | CodecSpec]] = [
        (talker, tiny.talker),
        (predictor, tiny.predictor),
        (decoder, tiny.codec),
    ]
    for config, stack in stacks:
        config["rope_theta"] = rope_theta(stack, config["head_dim"])
        config["rms_norm_eps"] = stack.rms_eps
    decoder["sliding_window"] = tiny.codec.window
    talker |= _codec_ids(source, tiny.predictor.vocab, predictor["vocab_size"])
    return files


def _codec_ids(source: Path, codes: int, wide_codes: int) -> Config:
    """The talker's special ids, languages and speakers, moved up above the wide codes."""
    config: dict[str, Any] = read_json(source / "config.json", "")
    talker: Config = config["talker_config"]

    def moved(i: int) -> int:
        return i if i < codes else i - codes + wide_codes

    named = {
        key: {name: moved(i) for name, i in talker.get(key, {}).items()}
        for key in ("codec_language_id", "spk_id")
    }
    dialects = {"spk_is_dialect": talker.get("spk_is_dialect", {})}
    return {name: moved(talker[name]) for name in CODEC_IDS} | named | dialects


def _tokens(source: Path) -> dict[str, int]:
    """The tokens that text can become, in the order of their ids."""
    tokens: dict[str, Any] = read_json(source / "vocab.json", "It is part of a checkpoint.")
    return dict(sorted(tokens.items(), key=lambda item: int(item[1])))


def _write_files(folder: Path, files: Mapping[str, Config]) -> None:
    for name, config in files.items():
        (folder / name).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _spec(files: Mapping[str, Config]) -> ModelSpec:
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / CODEC_FOLDER).mkdir()
        _write_files(Path(scratch), files)
        return read_spec(Path(scratch))


def _misfits(tiny: ModelSpec, wide: ModelSpec) -> Iterator[str]:
    """Why `tiny` cannot be written in the shapes of `wide`."""
    if tiny.kind == "base":
        yield "it is a base checkpoint, and its speaker encoder cannot be widened"
    if tiny.talker.vocab != tiny.predictor.vocab + SPECIAL:
        yield f"its talker has other than {SPECIAL} ids above its codes"
    stacks: list[tuple[str, TransformerSpec | CodecSpec, TransformerSpec | CodecSpec]] = [
        ("talker", tiny.talker, wide.talker),
        ("code predictor", tiny.predictor, wide.predictor),
        ("speech tokenizer's transformer", tiny.codec, wide.codec),
    ]
    yield from (f"its {name} has no room there" for name, t, w in stacks if not _fits(t, w))
    if tiny.text_hidden > wide.text_hidden:
        yield "its text embedding has no room there"
    yield from _codec_misfits(tiny.codec, wide.codec)


def _fits(tiny: TransformerSpec | CodecSpec, wide: TransformerSpec | CodecSpec) -> bool:
    """Whether all parts have room, with a channel to spare."""
    return (
        tiny.hidden < wide.hidden
        and tiny.intermediate <= wide.intermediate
        and tiny.layers <= wide.layers
        and tiny.kv_heads <= wide.kv_heads
        and tiny.heads // tiny.kv_heads <= wide.heads // wide.kv_heads
        and tiny.head_dim <= wide.head_dim
    )


def _codec_misfits(tiny: CodecSpec, wide: CodecSpec) -> Iterator[str]:
    for name in ("latent", "decoder_dim", "codebook_dim"):
        before, after = getattr(tiny, name), getattr(wide, name)
        if after % before:
            yield f"its speech tokenizer's {name} is {before}, which does not divide {after}"
    if tiny.codebook_size > wide.codebook_size:
        yield f"its speech tokenizer has more than {wide.codebook_size} codes"
    for name in ("quantizers", "semantic_quantizers", "upsample_rates", "upsampling_ratios"):
        if getattr(tiny, name) != getattr(wide, name):
            yield f"its speech tokenizer has {name} {getattr(tiny, name)}"


class _Tensors:
    """All of a tiny file, in fp32."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self.shapes = shapes
        self.found: dict[str, Tensor] = {}

    def load(self, take: Take) -> None:
        self.found = {name: take(name, *shape).float() for name, shape in self.shapes.items()}


def _read(folder: Path, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    tensors = _Tensors(shapes)
    Weights(folder).load(tensors)
    return tensors.found


def _write_language_model(
    out: Path,
    source: Path,
    tiny: ModelSpec,
    wide: ModelSpec,
    text_ids: Mapping[int, int],
    noise: Noise,
) -> None:
    tensors = _read(source, model_tensors(tiny))
    twin = LanguageModelTwin(tensors, noise, tiny, wide, text_ids)
    write_tensors(out / ONE_FILE, model_tensors(wide), twin, noise.dtype)


def _write_codec(out: Path, source: Path, tiny: CodecSpec, wide: CodecSpec, noise: Noise) -> None:
    tensors = _read(source / CODEC_FOLDER, codec_tensors(tiny))
    twin = CodecTwin(tensors, noise, tiny, wide)
    write_tensors(out / CODEC_FOLDER / ONE_FILE, codec_tensors(wide), twin, noise.dtype)
