"""Text to ids of the checkpoint's vocabulary, whole or piece by piece with the same result.

Control tokens never match: the vocabulary is used without its added tokens, so `<|im_end|>` in a
text is only text. Prompts are built from ids.
"""

import unicodedata
from itertools import chain
from pathlib import Path

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.models import BPE

from vivace.errors import CheckpointError

# The pattern the models were trained with, whatever the checkpoint's files or a loader say.
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SCAN_ALWAYS = 16  # characters; above, only when a word has ended (see TokenStream)


class Tokenizer:
    """Qwen's byte-level BPE. Immutable; threads may share it. Text must have no lone surrogates."""

    def __init__(self, model: BPE) -> None:
        self._split = pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")
        self._nfc = normalizers.NFC()
        self._bpe = tokenizers.Tokenizer(model)
        self._bpe.normalizer = self._nfc
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [self._split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    @classmethod
    def from_dir(cls, path: Path | str) -> "Tokenizer":
        """Read `vocab.json` and `merges.txt`. Raises `CheckpointError` if they cannot be used."""
        vocab, merges = Path(path) / "vocab.json", Path(path) / "merges.txt"
        for file in (vocab, merges):
            if not file.is_file():
                raise CheckpointError(
                    f"{file} is missing: without it there is no tokenizer. "
                    "Download the checkpoint again, with all its files."
                )
        try:
            model = BPE.from_file(str(vocab), str(merges))
        except Exception as error:  # the library raises a bare Exception
            raise CheckpointError(
                f"The tokenizer files in {path} cannot be read ({error}). "
                "They may be truncated: download vocab.json and merges.txt again."
            ) from error
        tokenizer = cls(model)
        tokenizer._check_bytes(vocab)
        return tokenizer

    def _check_bytes(self, vocab: Path) -> None:
        """Without all 256 byte symbols, some text would vanish silently."""
        symbols = pre_tokenizers.ByteLevel.alphabet()
        absent = [symbol for symbol in symbols if self._bpe.token_to_id(symbol) is None]
        if absent:
            raise CheckpointError(
                f"{vocab} lacks {len(absent)} of the 256 byte symbols; it is not the vocabulary of "
                "a Qwen model, or it is damaged. Download it again."
            )

    def encode(self, text: str) -> list[int]:
        """The ids of a whole text."""
        ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        return ids

    def encode_words(self, words: list[str]) -> list[int]:
        """The ids of words that `split` gave, each by itself."""
        ids: list[int] = self._bpe.encode(words, is_pretokenized=True, add_special_tokens=False).ids
        return ids

    def stream(self) -> "TokenStream":
        """Take a text piece by piece."""
        return TokenStream(self)

    def normalize(self, text: str) -> str:
        """NFC, as `encode` does it first."""
        normal: str = self._nfc.normalize_str(text)
        return normal

    def split(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """The words (pre-tokens) of a normalised text, with their start and end."""
        words: list[tuple[str, tuple[int, int]]] = self._split.pre_tokenize_str(text)
        return words


class TokenStream:
    """Ids of a text that comes in pieces: together exactly those of the whole.

    A word is given out once nothing that follows can change it: the character after it is there
    and it is not in the white space at the end. The last character waits, with its marks, since a
    further mark may still merge with it; marks keep letters letters and symbols symbols, so what
    it says about the word before it stands. The pattern looks ahead one character and never
    back, so the rest can be split by itself.

    Long words cost no rescans: a run of only letters, only white space or only symbols ends no
    word. A finished stream is empty and can take the next text.

    Who knows that white space, punctuation or the end comes next says so with `settle`, and a
    word of letters or figures waits for nothing.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._settled: list[str] = []  # normalised, starts at a word
        self._settled_chars = 0
        self._open: list[str] = []  # the last character and its marks, as they came

    def feed(self, text: str) -> list[int]:
        """The ids that are certain with this piece."""
        start = _last_starter(text)
        if start < 0:
            self._open.append(text)
            return []
        new = self._tokenizer.normalize("".join([*self._open, text[:start]]))
        self._open = [text[start:]]
        self._settled.append(new)
        self._settled_chars += len(new)
        if self._settled_chars > _SCAN_ALWAYS and _is_one_run(new + text[start]):
            return []
        return self._give_out()

    def settle(self) -> list[int]:
        """The ids that are certain if white space, punctuation or the end comes next.

        All of what was held back, unless it ends with a symbol, which the line end that may follow
        would belong to, or with a mark.
        """
        held = chain(reversed(self._open), reversed(self._settled))
        last = next((text[-1] for text in held if text), "")
        return self.finish() if last.isalnum() else []

    def finish(self) -> list[int]:
        """The ids of what was held back."""
        rest = "".join(self._settled) + self._tokenizer.normalize("".join(self._open))
        self._settled, self._settled_chars, self._open = [], 0, []
        return self._tokenizer.encode(rest)

    def _give_out(self) -> list[int]:
        settled = "".join(self._settled)
        self._settled = [settled]
        text = settled + self._tokenizer.normalize("".join(self._open))
        blank = len(text.rstrip())  # where the white space at the end starts
        certain = [
            (word, end)
            for word, (start, end) in self._tokenizer.split(text)
            if end <= len(settled) and start < blank
        ]
        if not certain:
            return []
        _, end = certain[-1]
        self._settled, self._settled_chars = [settled[end:]], len(settled) - end
        return self._tokenizer.encode_words([word for word, _ in certain])


def _last_starter(text: str) -> int:
    """The last character that cannot merge with one before it, or -1.

    Those that can are marks and Hangul vowels and finals. Code points this Python does not know
    may be marks of a newer Unicode.
    """
    for at in range(len(text) - 1, -1, -1):
        char = text[at]
        if not (
            "\u1160" <= char <= "\u11ff" or unicodedata.category(char) in {"Mn", "Mc", "Me", "Cn"}
        ):
            return at
    return -1


def _is_one_run(text: str) -> bool:
    """Whether all characters are letters, or white space, or neither of these nor numbers."""
    return (
        text.isalpha()
        or text.isspace()
        or not any(char.isalnum() or char.isspace() for char in text)
    )
