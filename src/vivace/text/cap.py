"""The most sound a text may become: generous, in proportion to what there is to say.

The model misses its end of speech in a few of a thousand requests, and on very short text it may
run on. The cap bounds that. Rates are about three times the mean duration in read speech, from the
syllable rates of Pellegrino, Coupé and Marsico (Language 87:3, 2011): Mandarin 5.2 syllables a
second, hence 0.19 s a character; Japanese 7.8, a kana each, about two to a kanji; English 6.2 of
about three letters, hence 0.05 s a letter. Capitals are counted as spelt out one by one, digits as
read out in words. The slack covers silence at both ends and slow words in short texts.
"""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from vivace.types import FRAME_S

SLACK_MS = 1_500
FRAME_MS = round(FRAME_S * 1000)

HAN_MS = 600
KANJI_MS = 800
KANA_MS = 400
HANGUL_MS = 500
CAPITAL_MS = 400
LETTER_MS = 200  # of an alphabet
OTHER_LETTER_MS = 400  # often a whole syllable, or one without its vowel
NUMBER_MS = 600
SYMBOL_MS = 300  # read as a word, or not at all
MARK_MS = 100  # punctuation, spaces, accents: pauses

_HAN = (
    range(0x2E80, 0x2FE0),
    range(0x3005, 0x3008),
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0x20000, 0x40000),
)
_KANA = (range(0x3040, 0x3100), range(0x31F0, 0x3200), range(0xFF66, 0xFFA0))
_HANGUL = (range(0xAC00, 0xD7A4),)
_ALPHABETS = (range(0x0590), range(0x1E00, 0x2000))  # Latin, Greek, Cyrillic, Armenian


def _letter_ms(char: str, language: str) -> int:
    code = ord(char)
    if any(code in r for r in _ALPHABETS):
        return CAPITAL_MS if char.isupper() else LETTER_MS
    if any(code in r for r in _HAN):
        return KANJI_MS if language == "japanese" else HAN_MS
    if any(code in r for r in _KANA):
        return KANA_MS
    if any(code in r for r in _HANGUL):
        return HANGUL_MS
    return OTHER_LETTER_MS


@lru_cache(4096)
def char_ms(char: str, language: str) -> int:
    """The most sound one character may become."""
    match unicodedata.category(char):
        case "Nd" | "Nl" | "No":
            return NUMBER_MS
        case category if category[0] == "L":
            return _letter_ms(char, language)
        case "Sc" | "Sm":
            return SYMBOL_MS
        case _:
            return SYMBOL_MS if char in "%&@#" else MARK_MS


def text_ms(text: str, language: str) -> int:
    """The most sound a text may become, without the slack."""
    return sum(char_ms(char, language) for char in text)


@dataclass(slots=True)
class Cap:
    """The cap of one session, which grows with its text; how that was split does not matter.

    `language` is a checkpoint's id in lower case. Whole milliseconds keep the sum exact.
    """

    language: str = "auto"
    sound_ms: int = SLACK_MS

    def add(self, text: str) -> None:
        """Make room for more text."""
        self.sound_ms += text_ms(text, self.language)

    @property
    def frames(self) -> int:
        """The most frames the text so far may become."""
        return self.sound_ms // FRAME_MS


def cap_frames(text: str, language: str = "auto") -> int:
    """The most frames a whole text may become."""
    cap = Cap(language)
    cap.add(text)
    return cap.frames
