"""A small byte-level tokenizer in the published file layout: about one token a character."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

# The published tokenizer's added tokens, in the order of their ids.
ADDED = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|>
<|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|>
<|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|>
<|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>
<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single>
<|audio_pad|>
""".split()  # noqa: SIM905
WORDS = {"user": 872, "assistant": 77091}  # the prompt's words, single tokens, and their places
PUBLISHED_BASE = 151_643  # tokens below the added ones


def vocabulary(*, published: bool) -> dict[str, int]:
    """Every token and its id: bytes in Qwen's order (a newline is 198), word parts, added tokens.

    `published` puts the words and the added tokens at their published ids.
    """
    if published:
        return published_vocabulary(_parts())
    return {t: i for i, t in enumerate([*sorted(ByteLevel.alphabet()), *_parts(), *ADDED])}


def published_vocabulary(tokens: Iterable[str]) -> dict[str, int]:
    """Bytes, words and added tokens at their published ids, with the other `tokens` between them.

    Tokens that no text can reach fill the gaps, because readers of the layout number added tokens
    from the size of the base vocabulary on.
    """
    fixed = {place: word for word, place in WORDS.items()}
    rest = iter(
        dict.fromkeys([*sorted(ByteLevel.alphabet()), *(t for t in tokens if t not in WORDS)])
    )
    base = [fixed.get(i) or next(rest, f"<unused {i}>") for i in range(PUBLISHED_BASE)]
    return {token: i for i, token in enumerate(base + ADDED)}


def write_tokenizer(out: Path, vocab: Mapping[str, int]) -> None:
    """Write vocab.json, merges.txt and tokenizer_config.json."""
    base = {token: i for token, i in vocab.items() if token not in ADDED}
    (out / "vocab.json").write_text(json.dumps(base, ensure_ascii=False), encoding="utf-8")
    merges = [f"{part[:-1]} {part[-1]}\n" for part in _parts()]
    (out / "merges.txt").write_text("#version: 0.2\n" + "".join(merges), encoding="utf-8")
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(vocab[token]): {"content": token, **plain, "special": True} for token in ADDED
        },
        "additional_special_tokens": ADDED[1:],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "processor_class": "Qwen3TTSProcessor",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _parts() -> list[str]:
    """What merging builds on the way to each word, left to right, the word itself last."""
    return [word[:end] for word in WORDS for end in range(2, len(word) + 1)]
