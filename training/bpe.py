"""Train the byte-level BPE tokenizer: Qwen's files and Qwen's pre-tokenizer, a small vocabulary.

python bpe.py --texts train.txt --out DIR
"""

import argparse
import itertools
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

VOCABULARY = 1_536
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
)
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NEWLINE = "Ċ"  # "\n" in the byte alphabet


def tokenizer(model: models.BPE) -> Tokenizer:
    made = Tokenizer(model)
    made.normalizer = normalizers.NFC()
    split = Split(Regex(QWEN), "isolated")
    made.pre_tokenizer = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    return made


def load(folder: Path) -> tuple[Tokenizer, dict[str, int]]:
    """The tokenizer without its control tokens (text is only text), and the whole vocabulary."""
    files = (str(folder / "vocab.json"), str(folder / "merges.txt"))
    made = tokenizer(models.BPE.from_file(*files))
    added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    special = {token["content"]: int(i) for i, token in added.items()}
    return made, made.get_vocab() | special


def configuration() -> dict[str, object]:
    first = VOCABULARY - len(SPECIAL)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {
        "added_tokens_decoder": {
            str(first + i): {"content": token, **flags, "special": True}
            for i, token in enumerate(SPECIAL)
        },
        "additional_special_tokens": list(SPECIAL),
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "unk_token": None,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    lines = args.texts.read_text().splitlines()[:200_000]
    made = tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    roles = itertools.repeat("assistant\nuser\n", 300_000)  # must become single tokens
    made.train_from_iterator(itertools.chain(lines, roles), trainer)
    args.out.mkdir(parents=True, exist_ok=True)
    made.model.save(str(args.out))
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    (args.out / "tokenizer_config.json").write_text(json.dumps(configuration(), indent=2))
    vocabulary = made.get_vocab()
    assert {"assistant", "user", NEWLINE} <= vocabulary.keys()
    assert len(vocabulary) == VOCABULARY - len(special)
    tokens = sum(len(e.ids) for e in made.encode_batch(lines[:5000]))
    print(f"bpe: {sum(map(len, lines[:5000])) / tokens:.2f} letters a token")


if __name__ == "__main__":
    main()
