"""Write a trained voice as a checkpoint in the published layout.

    python export.py --lm lm.pt --decoder decoder.pt --tokenizer DIR --out DIR

Configs come from vivace's own writer, so that the layout is the one it reads; every name and shape
is checked against it. Needs the `vivace` package.
"""

import argparse
import json
import shutil
from pathlib import Path

import bpe
import torch
from decoder import CONFIG, Decoder
from language import CODEC_IDS, ENTRIES, PREDICTOR, TALKER, TEXT_HIDDEN, TEXT_VOCABULARY, Shape
from safetensors.torch import save_file
from torch import Tensor

from vivace.checkpoint.presets import config_files
from vivace.checkpoint.read import read_spec
from vivace.checkpoint.tensors import codec_tensors, model_tensors

CARD = Path(__file__).parent / "card.md"
# The layout has a Mimi encoder. This one is as small as can be and random: the voice is one that
# is spoken with, not one that clips are cloned with.
ENCODER = {
    "num_filters": 2,
    "hidden_size": 16,
    "codebook_size": ENTRIES,
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
    "upsample_groups": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


def stack_config(s: Shape) -> dict[str, int]:
    return {
        "hidden_size": s.hidden,
        "intermediate_size": s.inner,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
    }


def configs(vocabulary: dict[str, int], generation: dict[str, object]) -> dict[str, dict]:
    files = config_files("tiny", "custom_voice", vocabulary)
    files["config.json"]["piece_s"] = 8.0  # longer prompts than it was trained on lose words
    talker = files["config.json"]["talker_config"]
    talker |= stack_config(TALKER)
    talker |= {"text_vocab_size": TEXT_VOCABULARY, "text_hidden_size": TEXT_HIDDEN}
    talker |= {"codec_language_id": {"english": CODEC_IDS["english"]}}
    talker |= {"spk_id": {"heart": CODEC_IDS["heart"]}, "spk_is_dialect": {"heart": False}}
    talker["code_predictor_config"] |= stack_config(PREDICTOR)
    files["generation_config.json"] = files["generation_config.json"] | generation
    codec = files["speech_tokenizer/config.json"]
    codec["decoder_config"] = codec["decoder_config"] | CONFIG
    codec["encoder_config"] = codec["encoder_config"] | ENCODER
    return files


def published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Decoder tensors under their names in the file, codebooks as plain entries of usage 1."""
    out = {f"decoder.{name}": tensor for name, tensor in state.items()}
    for name in [n for n in out if n.endswith("cluster_usage")]:
        total = name.replace("cluster_usage", "embedding_sum")
        out[total] = out[total] / out[name].clamp(min=1e-5)[:, None]
        out[name] = torch.ones_like(out[name])
    return out


def encoder_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    names = sorted(n for n in shapes if n.startswith("encoder."))
    return {n: 0.1 * torch.randn(shapes[n], generator=random) for n in names}


def check(tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
    assert tensors.keys() == shapes.keys(), tensors.keys() ^ shapes.keys()
    wrong = [n for n, t in tensors.items() if tuple(t.shape) != tuple(shapes[n])]
    assert not wrong, wrong


def write(tensors: dict[str, Tensor], path: Path) -> None:
    halves = {n: t.to(torch.float16).contiguous() for n, t in tensors.items()}
    assert all(t.isfinite().all() for t in halves.values())
    save_file(halves, path, metadata={"format": "pt"})
    path.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("lm", "decoder", "tokenizer", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--subtalker-temperature", type=float, default=0.6)
    parser.add_argument("--top-k", type=int, default=50)
    args = parser.parse_args()
    out, codec_out = args.out, args.out / "speech_tokenizer"
    codec_out.mkdir(parents=True, exist_ok=True)
    generation = {
        "temperature": args.temperature,
        "subtalker_temperature": args.subtalker_temperature,
        "top_k": args.top_k,
        "subtalker_top_k": args.top_k,
        "repetition_penalty": 1.0,
        "max_new_tokens": 2048,
    }
    _, vocabulary = bpe.load(args.tokenizer)
    for name, config in configs(vocabulary, generation).items():
        (out / name).write_text(json.dumps(config, indent=1) + "\n")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(args.tokenizer / name, out / name)
    shutil.copy(CARD, out / "README.md")

    spec = read_spec(out)
    language_model = torch.load(args.lm)
    check(language_model, model_tensors(spec))
    write(language_model, out / "model.safetensors")
    decoder = Decoder()
    decoder.load_state_dict(torch.load(args.decoder))
    shapes = codec_tensors(spec.codec)
    codec = published(decoder.state_dict()) | encoder_tensors(shapes)
    check(codec, shapes)
    write(codec, codec_out / "model.safetensors")
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    print(f"{out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
