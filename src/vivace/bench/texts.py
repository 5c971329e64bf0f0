"""The texts to speak: our own sentences, English and Chinese, short to long; or a file's lines."""

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from vivace.errors import InvalidRequest

_CJK = "\u3400-\u9fff\uf900-\ufaff"
# A word with the space and marks after it; in Chinese two characters stand for a word.
_WORDS = re.compile(rf"[{_CJK}]{{1,2}}[^\w{_CJK}]*|[^\s{_CJK}]+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Text:
    """One utterance and the name that the results call it by."""

    id: str
    text: str

    @property
    def chinese(self) -> bool:
        """Whether it is written in Chinese characters."""
        return re.search(f"[{_CJK}]", self.text) is not None


@dataclass(frozen=True, slots=True)
class TextSet:
    """A named set; the hash tells results over different texts apart."""

    name: str
    texts: tuple[Text, ...]

    def describe(self) -> dict[str, object]:
        """What a result says about its texts."""
        lines = [text.text for text in self.texts]
        return {
            "name": self.name,
            "count": len(lines),
            "mean_chars": round(sum(map(len, lines)) / len(lines), 1),
            "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        }


def load_texts(name: str) -> TextSet:
    """`mixed`, `en` or `zh` of the built-in set, or a UTF-8 file with one text a line."""
    if name in {"mixed", "en", "zh"}:
        rows = files("vivace.bench").joinpath("texts.tsv").read_text(encoding="utf-8").splitlines()
        built_in = [Text(*row.split("\t")) for row in rows]
        return TextSet(name, tuple(t for t in built_in if name in {"mixed", t.id[:2]}))
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"no texts: mixed, en, zh or a UTF-8 file ({error})") from None
    texts = tuple(Text(f"line-{i}", line) for i, line in enumerate(lines, 1) if line.strip())
    if not texts:
        raise InvalidRequest(f"{name} holds no text; it takes one a line")
    return TextSet(name, texts)


def pick(texts: Sequence[Text], count: int, seed: int) -> list[Text]:
    """`count` texts: the whole set in one random order after another, the same for a seed."""
    rng = random.Random(f"texts {seed}")
    picked: list[Text] = []
    while len(picked) < count:
        picked += rng.sample(texts, len(texts))
    return picked[:count]


def words(text: str) -> list[str]:
    """The text in pieces of a word, which join to it again."""
    return _WORDS.findall(text)
