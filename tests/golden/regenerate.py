"""Remake the golden files: small random checkpoints and what the official package makes of them.

The official package is the only oracle of what Qwen3-TTS computes, and it is not a dependency of
vivace. So it runs here, once, in an environment of its own, and its answers are committed:

    python3.11 -m venv .venv-reference && . .venv-reference/bin/activate
    pip install torch==2.13.0 transformers==4.57.3 accelerate==1.12.0 librosa soundfile einops
    pip install --no-deps qwen-tts==0.1.1
    python tests/golden/regenerate.py tests/golden

It writes `checkpoints/` (the published layout; `common/` holds the files that all four share) and
`cases/`, one npz per call of the official package. `tests/test_golden.py` compares a fresh run with
the committed files when VIVACE_REFERENCE_PYTHON names that environment's python.

Weights are random with a gain near one, so that every parameter shows in the output. The seeds are
chosen so that no greedy choice is closer than MIN_GAP: rounding on another machine cannot flip one.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clips import CLIPS, hum
from layout import (
    CODEBOOK,
    CODEC_CONFIG,
    CODEC_PREPROCESSOR,
    GENERATION,
    PREPROCESSOR,
    model_config,
    write_json,
    write_tokenizer,
)
from safetensors.torch import save_file
from torch import Tensor, nn

FRAMES = 10  # most frames of a case
MIN_GAP = 2e-3  # least distance between the two best logits of any greedy choice
CODEC_SEED = 1
SEEDS = {"custom_voice": 18, "custom_voice_0b6": 46, "voice_design": 0, "base": 0}
STEPS_KEPT = 4  # of the talker's logits,
IDS_KEPT = 2 * CODEBOOK  # which are those of the codes and of the special ids
STRIDE = 11  # kept samples of the long decodes; prime to every rate, so that all phases are seen

EN = "Hello world, this is a test."
ZH = "你好，世界。今天天气很好。"
REFERENCE_TEXT = "A reference sentence."


# --- the official package without the parts that only its unpublished 25 Hz tokenizer needs


def stand_in(name: str) -> types.ModuleType:
    """An empty module that imports under `name`, where the real one is not installed."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], leaf, module)
    return module


def import_official() -> types.ModuleType:
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    for root, *inner in (
        ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"),
        ("sox",),
        ("onnxruntime",),
    ):
        if importlib.util.find_spec(root) is None:
            for name in (root, *inner):
                stand_in(name)
    import qwen_tts

    return qwen_tts


# --- random weights that make every parameter matter


def drawn(name: str, shape: torch.Size, rng: torch.Generator) -> Tensor:
    """Random values for the parameter or buffer `name`, with a gain near one."""
    noise = torch.randn(shape, generator=rng)
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "cluster_usage":
        return 0.5 + 3 * torch.rand(shape, generator=rng)
    if leaf in ("embedding_sum", "embed_sum") or "embedding" in name:
        return noise
    if leaf in ("alpha", "beta"):  # logarithms
        return 0.3 * noise
    if leaf in ("gamma", "scale"):
        return 0.3 + 0.1 * noise
    if len(shape) == 1:
        return 0.1 * noise + (1.0 if "norm" in name and leaf == "weight" else 0.0)
    inputs = shape[0] if ".block.1." in name or "upsample" in name else shape[1:].numel()
    gain = 1.0
    if "codec_head" in name or "lm_head" in name:
        gain = 4.0  # odds worth sampling from
    elif ".conv2." in name:
        gain = 0.3  # of a residual: at 1 the decoder's twelve in a row make rounding audible
    return noise * (gain / inputs**0.5)


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    buffers = [
        (n, b) for n, b in model.named_buffers() if n.endswith(("embed_sum", "cluster_usage"))
    ]
    for name, tensor in sorted([*model.named_parameters(), *buffers]):
        tensor.copy_(drawn(name, tensor.shape, rng))


@torch.no_grad()
def favour_end(talker: nn.Module) -> None:
    """Make end-of-speech likely enough that some cases stop by themselves."""
    talker.codec_head.weight[talker.config.codec_eos_token_id].mul_(1.5)


def output_convolutions(decoder: nn.Module) -> Iterator[nn.Module]:
    """The convolution at the head of each stage of the waveform decoder, in order."""
    for stage in decoder.decoder:
        first = stage.block[1] if hasattr(stage, "block") else stage
        if hasattr(first, "conv"):
            yield first.conv


@torch.no_grad()
def calibrate(decoder: nn.Module, seed: int) -> None:
    """Scale each stage to unit level and the sound to -14 dB, so that nothing clips."""
    rng = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, CODEBOOK, (1, 16, 40), generator=rng)
    convolutions = list(output_convolutions(decoder))
    for convolution in convolutions:
        outputs: list[Tensor] = []
        hook = convolution.register_forward_hook(lambda _m, _i, out, keep=outputs: keep.append(out))
        decoder(codes)
        hook.remove()
        level = outputs[0].square().mean().sqrt()
        gain = (0.2 if convolution is convolutions[-1] else 1.0) / level
        convolution.weight.mul_(gain)
        convolution.bias.mul_(gain)


# --- checkpoints

LAYOUTS = {  # kind, size, stored type, files
    "custom_voice": ("custom_voice", "1b7", torch.float32, 1),
    "custom_voice_0b6": ("custom_voice", "0b6", torch.bfloat16, 1),
    "voice_design": ("voice_design", "1b7", torch.float16, 1),
    "base": ("base", "1b7", torch.bfloat16, 2),
}


def save_weights(out: Path, weights: dict[str, Tensor], files: int) -> None:
    """One safetensors file, or several with an index."""
    if files == 1:
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    size = -(-len(names) // files)
    where: dict[str, str] = {}
    for i in range(files):
        file = f"model-{i + 1:05}-of-{files:05}.safetensors"
        part = {name: weights[name] for name in names[i * size : (i + 1) * size]}
        save_file(part, out / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    total = sum(w.nbytes for w in weights.values())
    write_json(
        out / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": where},
    )


def write_model(out: Path, name: str, seed: int) -> None:
    from qwen_tts.core.models import (
        Qwen3TTSConfig,
        Qwen3TTSForConditionalGeneration,
    )

    kind, size, dtype, files = LAYOUTS[name]
    out.mkdir(parents=True, exist_ok=True)
    config = model_config(kind, size)
    write_json(out / "config.json", config)
    model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**config)).eval()
    randomise(model, seed)
    favour_end(model.talker)
    weights = {n: w.to(dtype).contiguous() for n, w in model.state_dict().items()}
    save_weights(out, weights, files)


def write_common(out: Path) -> None:
    """The files that every checkpoint has alike: tokenizer, defaults and codec."""
    from qwen_tts.core import (
        Qwen3TTSTokenizerV2Config,
        Qwen3TTSTokenizerV2Model,
    )

    codec = out / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    write_tokenizer(out)
    write_json(out / "generation_config.json", GENERATION)
    write_json(out / "preprocessor_config.json", PREPROCESSOR)
    write_json(codec / "config.json", CODEC_CONFIG)
    write_json(codec / "preprocessor_config.json", CODEC_PREPROCESSOR)
    model = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**CODEC_CONFIG)).eval()
    randomise(model, CODEC_SEED)
    calibrate(model.decoder, CODEC_SEED)
    weights = {n: w.contiguous() for n, w in model.state_dict().items()}
    save_weights(codec, weights, 1)


@contextmanager
def loaded(checkpoints: Path, name: str) -> Iterator[Any]:
    """The official model of one checkpoint in fp32, with its own and the common files together."""
    with tempfile.TemporaryDirectory() as whole:
        for part in ("common", name):
            shutil.copytree(checkpoints / part, whole, dirs_exist_ok=True)
        official = import_official()
        yield official.Qwen3TTSModel.from_pretrained(
            whole, dtype=torch.float32, attn_implementation="eager"
        )


# --- what the official package does, written down


SPEAK = {
    "custom_voice": "generate_custom_voice",
    "voice_design": "generate_voice_design",
    "base": "generate_voice_clone",
}


class CloseChoice(Exception):
    """Two candidates of a greedy choice are so near that another machine may pick the other."""


class Recorder:
    """Runs the official model and keeps what it feeds and produces, without changing it."""

    def __init__(self, model: Any, out: Path, checkpoint: str) -> None:
        self.model, self.out, self.checkpoint = model, out, checkpoint
        self.speak = getattr(model, SPEAK[model.model.tts_model_type])
        self.frames: list[Any] = []  # the predictor's results, one a frame
        scored = dict(output_logits=True, output_scores=True)
        talker = model.model.talker
        self._watch(talker, self._keep_talker, **scored)
        self._watch(talker.code_predictor, lambda _, made: self.frames.append(made), **scored)
        self._watch(model.model, self._keep_codes)

    def _watch(self, module: Any, keep: Callable[[dict[str, Any], Any], None], **more: Any) -> None:
        generate = module.generate

        def watched(**given: Any) -> Any:
            made = generate(**given, **more)
            keep(given, made)
            return made

        module.generate = watched

    def _keep_talker(self, given: dict[str, Any], made: Any) -> None:
        self.given, self.made = given, made

    def _keep_codes(self, _given: dict[str, Any], made: Any) -> None:
        self.codes = made[0]

    def run(self, case: str, seed: int | None = None, **request: Any) -> None:
        """Record one call of the official package, for one text or several; greedy without a seed.

        Raises CloseChoice if a greedy choice is closer than MIN_GAP.
        """
        self.frames.clear()
        greedy = dict(do_sample=False, subtalker_dosample=False) if seed is None else {}
        torch.manual_seed(seed or 0)
        pcm, _ = self.speak(**request, **greedy, max_new_tokens=FRAMES + 1)
        told = {k: v for k, v in request.items() if k not in ("voice_clone_prompt", "ref_audio")}
        kept = dict(request=np.array(json.dumps(told | {"seed": seed}, ensure_ascii=False)))
        kept["tts_pad"] = self.given["tts_pad_embed"][0, 0].numpy()
        for row, sound in enumerate(pcm):
            kept |= {f"{key}_{row}": value for key, value in self._row(row, sound).items()}
        name = f"{self.checkpoint}.{case}"
        np.savez_compressed(self.out / f"{name}.npz", **kept)
        gap = min(self._gap(row) for row in range(len(pcm)))
        frames = [len(codes) for codes in self.codes]
        peak = max(float(np.abs(sound).max()) for sound in pcm)
        print(f"{name:40} frames {frames!s:8} gap {gap:.4f} peak {peak:.2f}", flush=True)
        if seed is None and gap < MIN_GAP:
            raise CloseChoice(f"{name}: a greedy choice is as close as {gap:.1e}; take other seeds")

    def _row(self, row: int, pcm: np.ndarray) -> dict[str, np.ndarray]:
        mask = self.given["attention_mask"][row].bool()
        codes = self.codes[row]
        steps = torch.stack(self.made.logits[:STEPS_KEPT])[:, row, :IDS_KEPT]
        return dict(
            prompt=self.given["inputs_embeds"][row][mask].numpy(),
            trailing=self.given["trailing_text_hidden"][row].numpy(),
            talker_logits=steps.numpy(),
            predictor_logits=torch.stack(self.frames[0].logits)[:, row].numpy(),
            codes=codes.numpy().astype(np.int16),
            # The official cut after a reference is now and then one sample early.
            pcm=pcm[-1920 * len(codes) :],
        )

    def _gap(self, row: int) -> float:
        """Least distance between the two best candidates of any choice of this row."""
        frames = len(self.codes[row])
        choices = [*self.made.scores[: frames + 1]]
        choices += [scores for frame in self.frames[:frames] for scores in frame.scores]
        best = (scores[row].topk(2).values for scores in choices)
        return min(float(first - second) for first, second in best)


def record_custom_voice(recorder: Recorder) -> None:
    ryan = dict(text=EN, speaker="Ryan", language="English")
    recorder.run("greedy", **ryan)
    recorder.run("no_penalty", **ryan, repetition_penalty=1.0)
    recorder.run("strong_penalty", **ryan, repetition_penalty=2.0)
    recorder.run("dialect", text=ZH, speaker="Dylan", language="Chinese")
    recorder.run("auto_instruct", text=EN, speaker="Vivian", instruct="Very happy.")
    recorder.run("streaming", **ryan, non_streaming_mode=False)
    recorder.run(
        "batch",
        text=[EN, ZH],
        speaker=["Ryan", "Eric"],
        language=["English", "Auto"],
        instruct=["", "Very calm."],
    )
    recorder.run("sampled", **ryan, seed=1234)
    recorder.run(
        "sampled_narrow",
        **ryan,
        seed=5,
        temperature=0.7,
        top_k=20,
        top_p=0.8,
        subtalker_temperature=1.2,
        subtalker_top_k=10,
        subtalker_top_p=0.9,
    )


def record_voice_design(recorder: Recorder) -> None:
    tale = "A calm low male voice, warm and unhurried, as if it told a tale."  # over 64 rows
    designed = dict(text=EN, instruct=tale, language="English")
    recorder.run("greedy", **designed)
    recorder.run("streaming", **designed, non_streaming_mode=False)
    recorder.run("sampled", text=ZH, instruct="", language="Chinese", seed=7)
    record_codec(recorder)


@torch.inference_mode()
def record_base(recorder: Recorder) -> None:
    clip = hum(31_000)  # not a whole number of frames
    audio = (clip.astype(np.float32) / 32768, 24_000)
    items = recorder.model.create_voice_clone_prompt(audio, ref_text=REFERENCE_TEXT)
    np.savez_compressed(
        recorder.out / f"{recorder.checkpoint}.clone.npz",
        clip=clip,
        ref_text=np.array(REFERENCE_TEXT),
        ref_codes=items[0].ref_code.numpy().astype(np.int16),
        x_vector=items[0].ref_spk_embedding.numpy(),
    )
    english = dict(language="English", voice_clone_prompt=items)
    recorder.run("icl_streaming", text=EN, **english)
    recorder.run("icl_whole", text=f"{EN} {EN} {EN}", **english, non_streaming_mode=True)
    recorder.run("icl_long", text=f"{EN} {EN}", **english)
    vector = dict(text=EN, language="English", ref_audio=audio, x_vector_only_mode=True)
    recorder.run("x_vector", **vector)
    recorder.run("x_vector_whole", **vector, non_streaming_mode=True)
    recorder.run("icl_sampled", text=ZH, language="Chinese", voice_clone_prompt=items, seed=3)
    recorder.run("x_vector_sampled", **vector, seed=11)
    record_clips(recorder)


def record_clips(recorder: Recorder) -> None:
    """What clips of other lengths are encoded to. They are made by a formula and not stored."""
    kept = {}
    for samples in CLIPS:
        audio = (hum(samples).astype(np.float32) / 32768, 24_000)
        item = recorder.model.create_voice_clone_prompt(audio, ref_text=REFERENCE_TEXT)[0]
        kept[f"codes_{samples}"] = item.ref_code.numpy().astype(np.int16)
        kept[f"x_vector_{samples}"] = item.ref_spk_embedding.numpy()
    np.savez_compressed(recorder.out / f"{recorder.checkpoint}.clips.npz", **kept)


@torch.inference_mode()
def record_codec(recorder: Recorder) -> None:
    """The decoder alone: past its window (72 frames) and past the official chunk (300 frames).

    The official decode of a chunk starts from 25 frames of context, which is not what the decoder
    computes; the decoder itself, over all frames at once, is the truth.
    """
    rng = torch.Generator().manual_seed(CODEC_SEED + 1)
    decoder = recorder.model.model.speech_tokenizer.model.decoder
    for frames in (1, 5, 80, 330):
        codes = torch.randint(0, CODEBOOK, (frames, 16), generator=rng)
        pcm = decoder(codes.T[None])[0, 0].numpy()
        stride = 1 if frames < 80 else STRIDE
        np.savez_compressed(
            recorder.out / f"codec.{frames}.npz",
            codes=codes.numpy().astype(np.int16),
            stride=stride,
            pcm=pcm[::stride],
        )
        level, peak = np.sqrt(np.square(pcm).mean()), np.abs(pcm).max()
        print(f"codec.{frames:<34} level {level:.3f} peak {peak:.2f}", flush=True)


RECORD: dict[str, Callable[[Recorder], None]] = {
    "custom_voice": record_custom_voice,
    "custom_voice_0b6": record_custom_voice,
    "voice_design": record_voice_design,
    "base": record_base,
}


def record(out: Path, name: str, seed: int) -> None:
    """Write one checkpoint and its cases."""
    checkpoints, cases = out / "checkpoints", out / "cases"
    write_model(checkpoints / name, name, seed)
    with loaded(checkpoints, name) as model:
        recorder = Recorder(model, cases, name)
        RECORD[name](recorder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="where checkpoints/ and cases/ go")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    import_official()
    for part in ("checkpoints", "cases"):
        shutil.rmtree(out / part, ignore_errors=True)
    (out / "cases").mkdir(parents=True)
    write_common(out / "checkpoints" / "common")
    for name, seed in SEEDS.items():
        record(out, name, seed)


if __name__ == "__main__":
    main()
