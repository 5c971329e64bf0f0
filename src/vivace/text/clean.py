"""Removes what a reader does not see, piece by piece, and says whether there is sound in it."""

import re
import unicodedata

from vivace.errors import InvalidRequest

_SURROGATE = re.compile("[\ud800-\udfff]")
_HIGH = re.compile("[\ud800-\udbff]\\Z")
_RUN = re.compile("[\u200c\u200d]|\\s+|[^\\s\u200c\u200d]+")
_JOINERS = "\u200c\u200d"
_SKIN_TONES = range(0x1F3FB, 0x1F400)

# Scripts in which a joiner changes the spelling: Arabic and its neighbours, the Indic family
# (with Tibetan, Myanmar, Khmer, Mongolian, Javanese) and the Arabic presentation forms.
_JOINING = (
    range(0x0600, 0x0900),
    range(0x0900, 0x0E00),
    range(0x0F00, 0x10A0),
    range(0x1780, 0x18B0),
    range(0x1B00, 0x1C00),
    range(0xA840, 0xAA80),
    range(0xFB50, 0xFE00),
    range(0xFE70, 0xFEFD),
    range(0x11000, 0x12000),
)


def _replacements() -> dict[int, str | None]:
    """Code points to drop (None) or to write otherwise."""
    controls = [*range(0x20), *range(0x7F, 0xA0)]
    zero_width = [0x00AD, 0x180E, 0x200B, *range(0x2060, 0x2065), 0xFEFF, *range(0xFFF9, 0xFFFC)]
    bidi = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x2070)]
    tags = range(0xE0000, 0xE0080)
    table: dict[int, str | None] = dict.fromkeys([*controls, *zero_width, *bidi, *tags])
    for kept in "\t\n\r":  # \r becomes \n later, when it is known whether a \n follows
        del table[ord(kept)]
    table |= dict.fromkeys(map(ord, "\v\f\x85\u2028\u2029"), "\n")
    table |= dict.fromkeys(map(ord, "\u00a0\u2007\u202f"), " ")
    return table


_REPLACEMENTS = _replacements()


def _paired(text: str, param: str) -> str:
    """`text` with surrogate pairs written as one character; an unpaired half raises."""
    if not _SURROGATE.search(text):
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{param} is not valid Unicode: half of a surrogate pair stands alone. "
            "Send the character whole, or as \\uXXXX\\uXXXX with both halves.",
            param=param,
            code="unpaired_surrogate",
        ) from error


def check_text(text: str, param: str = "input") -> None:
    """Raise `InvalidRequest`, naming the field `param`, if `text` has an unpaired surrogate."""
    _paired(text, param)


def clean(text: str, param: str = "input") -> str:
    """The whole of a text, cleaned as `Cleaner` cleans its pieces."""
    cleaner = Cleaner(param)
    return cleaner.feed(text) + cleaner.finish()


class Cleaner:
    """Cleans one text that comes in pieces; how it was split makes no difference.

    Dropped: controls, zero-width characters, soft hyphens, bidirectional controls, tags, and white
    space at both ends. No-break spaces become spaces, all line ends become a newline. U+200C and
    U+200D stay where they are spelling: within Arabic and Indic words and emoji. White space and
    joiners wait for what follows, and so does half of a surrogate pair.
    """

    def __init__(self, param: str = "input") -> None:
        self._param = param
        self._half = ""  # a high surrogate at the end of the last piece
        self._after_return = False  # a \n directly after \r is the same line end
        self._last = ""  # the last character given out, or nothing yet
        self._joiner = ""  # stands directly after `_last`
        self._spaces: list[str] = []  # stand after both

    def feed(self, text: str) -> str:
        """What can be given out now. Raises `InvalidRequest` for half of a surrogate pair.

        A piece that raises is dropped as a whole, with the half that waited before it.
        """
        text = self._half + text
        half = _HIGH.search(text)
        self._half = ""
        text = _paired(text[: half.start()] if half else text, self._param)
        self._half = half.group() if half else ""
        return self._visible(self._line_ends(text.translate(_REPLACEMENTS)))

    def finish(self) -> str:
        """What was held back and is not white space. Raises `InvalidRequest` as `feed` does."""
        half, self._half = self._half, ""
        check_text(half, self._param)
        return self._joined("")

    @property
    def pausing(self) -> bool:
        """Does white space, or else the end, follow what was given out?"""
        return bool(self._spaces)

    def _line_ends(self, text: str) -> str:
        if self._after_return and text.startswith("\n"):
            text = text[1:]
            self._after_return = False
        if text:
            self._after_return = text.endswith("\r")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def _visible(self, text: str) -> str:
        out: list[str] = []
        for run in _RUN.findall(text):
            if run in _JOINERS:
                if not self._spaces and not self._joiner:
                    self._joiner = run
            elif run.isspace():
                out.append(self._joined(run))
                if self._last:
                    self._spaces.append(run)
            else:
                out += (self._joined(run), *self._spaces, run)
                self._spaces.clear()
                self._last = run[-1]
        return "".join(out)

    def _joined(self, following: str) -> str:
        """The joiner that waits, if it is spelling between its neighbours."""
        joiner, self._joiner = self._joiner, ""
        if not joiner or not _is_spelling(self._last, following[:1]):
            return ""
        self._last = joiner
        return joiner


def _is_spelling(before: str, after: str) -> bool:
    """Whether a joiner between these two means something (UAX #31, emoji sequences)."""
    if not before:
        return False
    if unicodedata.combining(before) == 9:  # a virama: also at the end of a word
        return True
    if not after:
        return False
    return (_is_joining(before) and _is_joining(after)) or (_is_emoji(before) and _is_emoji(after))


def _is_joining(char: str) -> bool:
    return unicodedata.category(char)[0] in "LM" and any(ord(char) in r for r in _JOINING)


def _is_emoji(char: str) -> bool:
    """Also variation selector 16, skin tones and the two arrows that occur in sequences."""
    return (
        unicodedata.category(char) == "So"
        or char in "\ufe0f\u2194\u2195"
        or ord(char) in _SKIN_TONES
    )


def speakable(text: str) -> bool:
    """Whether any character has a sound of its own: a letter or a number, in any spelling.

    `№` and `℃` count, for they are letters in compatibility spelling. Other symbols do not: `%`,
    `&`, `+` or `€` are read with what stands beside them; alone they are a bullet, a rule or a
    fragment, and the model babbles on them. Marks and modifier letters only change a neighbour.
    Piecewise: a text is speakable if one of its pieces is.
    """
    return any(map(_sounds, text))


def _sounds(char: str) -> bool:
    if char.isascii():
        return char.isalnum()
    return any(
        unicodedata.category(c) in {"Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No"}
        and c not in "\u115f\u1160"  # Hangul fillers: letters in name only
        for c in unicodedata.normalize("NFKC", char)
    )
