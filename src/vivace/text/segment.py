"""Cuts a long text into pieces, each a prompt of its own, while it comes.

A piece goes on until it is long enough, then ends at the first sentence end; if none comes, at a
clause, then at a space, then at any character. Lengths are those of `Cap`, so that pieces take
about as long to say in every script. Each cut looks at the text before it and one character after,
never at how the text was split.
"""

import re
import unicodedata
from dataclasses import dataclass
from enum import IntEnum

from vivace.text.cap import char_ms, text_ms

MEAN_SHARE = 3  # a cap is about three times the time the text takes

_CLOSERS = "\"'”’»)]}」』）】》〉*_~`"  # and marks of markdown
_OPENERS = "\"'“‘«([{「『（【《〈*_~`¿¡"
_STOPS = "。．！？!?｡"
_COMMAS = "、，；：､"
# Where a piece may end: white space, and marks that need none after them.
_GAP = re.compile(rf"[{_STOPS}{_COMMAS}]{{1,16}}[{re.escape(_CLOSERS)}]{{0,8}}\s*|\s+")
_CONTEXT = 256  # characters before a gap that say what it is
_TAG = re.compile(r"<[A-Za-z/!?][^<>]*\Z")
_LIST_NUMBER = re.compile(r"(?:^|\n)[ \t]*\d{1,3}[.)]\Z")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+")  # J. and e.g. and U.S.
_ABBREVIATIONS = """
dr mr mrs ms mx prof st sr jr rev hon gen col capt lt sgt gov sen rep pres messrs mt ft
no nos nr vol vols pp ch sec fig figs eq art ed eds op cf vs etc approx ca est al
jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun
inc ltd co corp bros dept univ ave blvd rd hr fr bzw usw ggf evtl inkl str tel abs
sra srta dra ud uds mme mlle mm sig dott ing avv г ул им тел
"""
_SHORTENED = frozenset(_ABBREVIATIONS.split())


class Break(IntEnum):
    """How good a place for a cut is, best first."""

    SENTENCE = 0
    CLAUSE = 1
    SPACE = 2
    CHARACTER = 3
    ANYWHERE = 4  # also before a mark or a joiner


# A cut is made at the first place of a kind once the piece is this much of the least length.
_ENOUGH = {
    Break.SENTENCE: 1.0,
    Break.CLAUSE: 1.25,
    Break.SPACE: 1.5,
    Break.CHARACTER: 1.75,
    Break.ANYWHERE: 1.9,
}
MOST = 2  # times the least length: no piece is longer, white space at its end apart


@dataclass(frozen=True, slots=True)
class Part:
    """Some text of the current piece, and whether the piece ends with it. All parts rejoin."""

    text: str
    ends: bool = False


class Segmenter:
    """Takes one text that comes in pieces of any size. `least_s` is speech, at its mean rate."""

    def __init__(self, least_s: float, language: str = "auto") -> None:
        self._language = language
        least_ms = least_s * 1000 * MEAN_SHARE
        self._enough_ms = {kind: share * least_ms for kind, share in _ENOUGH.items()}
        self._open = ""  # a gap that may not be over yet
        self._before = ""  # the end of the piece so far
        self._piece_ms = 0
        self._text: list[str] = []  # of the part that is being put together
        self._parts: list[Part] = []

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain with this text. White space at an end waits."""
        text, at = self._open + text, 0
        for gap in _GAP.finditer(text):
            self._word(text[at : gap.start()])
            at = gap.start()
            if gap.end() == len(text):
                break
            self._gap(gap.group(), text[gap.end()])
            at = gap.end()
        else:
            self._word(text[at:])
            at = len(text)
        self._open = text[at:]
        return self._give_out()

    @property
    def pausing(self) -> bool:
        """Does white space or punctuation follow the parts so far?"""
        return bool(self._open)

    def finish(self) -> list[Part]:
        """The rest; it ends the last piece, if there is one."""
        self._add(self._open)
        self._open = ""
        if self._before:
            self._cut()
        return self._give_out()

    def _give_out(self) -> list[Part]:
        if self._text:
            self._parts.append(Part("".join(self._text)))
            self._text.clear()
        parts, self._parts = self._parts, []
        return parts

    def _add(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._before = (self._before + text)[-_CONTEXT:]
            self._piece_ms += text_ms(text, self._language)

    def _cut(self) -> None:
        self._parts.append(Part("".join(self._text), ends=True))
        self._text.clear()
        self._before, self._piece_ms = "", 0

    def _gap(self, gap: str, after: str) -> None:
        before = self._before
        self._add(gap)
        if self._piece_ms < self._enough_ms[Break.SENTENCE]:
            return
        if self._piece_ms >= self._enough_ms[_kind(before, gap, after)]:
            self._cut()

    def _word(self, text: str) -> None:
        """Text without a gap in it: cut only where there is no other way."""
        if self._piece_ms + text_ms(text, self._language) < self._enough_ms[Break.CHARACTER]:
            self._add(text)
            return
        start, ms = 0, self._piece_ms
        for at, char in enumerate(text):
            glued = _is_glued(text[at - 1] if at else self._before[-1:], char)
            kind = Break.ANYWHERE if glued else Break.CHARACTER
            if ms >= self._enough_ms[kind]:
                self._add(text[start:at])
                self._cut()
                start, ms = at, 0
            ms += char_ms(char, self._language)
        self._add(text[start:])


def _is_glued(before: str, char: str) -> bool:
    """Whether a character belongs to the one before it: a mark, a joiner, a Hangul part."""
    return (
        unicodedata.category(char)[0] == "M"
        or char in "\u200c\u200d"
        or before in ("\u200c", "\u200d")
        or "\u1160" <= char <= "\u11ff"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
    )


def _kind(before: str, gap: str, after: str) -> Break:
    """What a gap is. `before` is the piece up to it, `after` the character that follows."""
    if _TAG.search(before):
        return Break.ANYWHERE
    if gap.isspace():
        return _kind_of_space(before, gap, after)
    if before[-1:].isdigit() and after.isdigit():  # 3．14 and 12：30
        return Break.CHARACTER
    if gap[0] in _COMMAS:
        return Break.CLAUSE
    wide = gap[0] not in "!?" or unicodedata.east_asian_width(after) in "WF"
    if gap[-1].isspace() or wide:
        return Break.SPACE if after.islower() else Break.SENTENCE
    return Break.ANYWHERE  # in an address, as ?a=b


def _kind_of_space(before: str, gap: str, after: str) -> Break:
    if gap.count("\n") > 1:
        return Break.SENTENCE
    if before[-1:].isdigit() and after.isdigit():  # 10 000
        return Break.CHARACTER
    word = (before.split() or [""])[-1].lstrip(_OPENERS).rstrip(_CLOSERS)
    if (
        word.endswith((".", "…", "।", "؟", "۔"))
        and not after.islower()
        and not _is_abbreviated(before, word)
    ):
        return Break.SENTENCE
    if "\n" in gap or word.endswith((",", ";", ":", "–", "—", "-", "،", "؛")):
        return Break.CLAUSE
    return Break.SPACE


def _is_abbreviated(before: str, word: str) -> bool:
    """Whether the point at the end of a word is the word's own."""
    return (
        word[:-1].lower() in _SHORTENED
        or _INITIALS.fullmatch(word) is not None
        or _LIST_NUMBER.search(before) is not None
    )
