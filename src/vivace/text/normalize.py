"""Takes out what is written for the eye, while the text comes: docs/text.md has the rules.

Markdown and HTML marks, emoji and the machinery of addresses go; words, numbers and punctuation
stay as they are. Each rule looks at one atom (a word, a link, a tag) and the characters at its
sides, so what waits for more text is bounded and any split gives the same result.
"""

import re
import unicodedata

from vivace.errors import Unprocessable

MOST_WORD = 1024  # characters; a longer one is looked at in parts of this size

# Scripts written without spaces: a run of them holds no marks and need not end before it goes out.
_WIDE = (
    "\u1100-\u11ff\u2e80-\u2fdf\u3001-\ua4cf\ua960-\ua97f\uac00-\ud7ff"
    "\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
)
_SSML_NAMES = """
speak break prosody phoneme say-as emphasis voice audio lang lexicon lookup metadata meta desc
paragraph sentence par seq media
"""
_HTML_NAMES = """
a b i u s em strong del ins code pre p br hr div span ul ol li table thead tbody tr th td mark
h1 h2 h3 h4 h5 h6 sub sup small details summary blockquote center font kbd
"""
_SSML, _HTML = frozenset(_SSML_NAMES.split()), frozenset(_HTML_NAMES.split())
_LINES = frozenset(["p", "br", "hr", "div", "li", "tr", "blockquote", *(f"h{i}" for i in "123456")])

_NAMES = "|".join(sorted(_SSML | _HTML, key=len, reverse=True))
_NAME = rf"(?:(?:amazon|mstts|google|ibm):[\w-]+|{_NAMES})(?![\w:-])"
_ATOM = re.compile(
    r"(?P<space>\s+)"
    rf"|(?P<wide>[{_WIDE}]+)"
    r"|(?P<pipe>\|)"
    r"|!?\[(?P<link>[^\[\]\n]{0,300})\]\((?:[^()\n]|\([^()\n]{0,300}\)){0,1000}\)"
    r"|(?P<box>\[[ xX]\](?=\s))"
    rf"|(?P<tag></?{_NAME}(?:\s[^<>=]{{1,40}}=[^<>]{{0,200}}|\s*/?)>)"
    r"|<(?P<auto>https?://[^\s<>]{1,1000})>"
    rf"|(?P<word>[^\s{_WIDE}|\[<]{{1,{MOST_WORD}}}|.)",
    re.IGNORECASE,
)
# What may still become a link, a tag or an address in angle brackets.
_OPEN = re.compile(
    r"!?(?:\[[^\[\]\n]{0,300}"
    r"(?:\](?:\((?:[^()\n]|\([^()\n]{0,300}\)){0,1000}(?:\([^()\n]{0,300})?)?)?)?"
    rf"|<(?:/?[a-z][\w:-]{{0,30}}|/?{_NAME}(?:\s[^<>=]{{0,40}}(?:=[^<>]{{0,200}})?|\s*/?)"
    r"|/|https?:/{0,2}[^\s<>]{0,1000})?",
    re.IGNORECASE,
)

# Atoms at the end of what has come that may be another thing with what follows; with white space
# or the end to follow, only a box, which is none at the end.
_UNSURE = {False: ("space", "word"), True: ("space", "box")}

_MARK = re.compile(r"\*+|_+|~~+|`+")
_LINE_MARK = re.compile(r"#{1,6}|[-*+•‣◦]|>+|-{2,}|\*{3,}|_{3,}|={3,}")
_RULE_OF_TABLE = re.compile(r":?-+:?")
_FENCE = re.compile(r"`{3,}[^`]*|~{3,}[^~]*")

_MAILTO = re.compile(r"\bmailto:(?=[^\s@]+@)", re.IGNORECASE)
_URL = re.compile(r"(?:https?|ftp)://[^\s<>\"“”]+", re.IGNORECASE)
_URL_PARTS = re.compile(r"\w+://(?:www\.)?([^/?#]*)([^?#]*)", re.IGNORECASE)
MOST_PATH = 40  # characters of an address after its host that are still read

_PICTURES = "\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_EMOJI = re.compile(rf"[{_PICTURES}\ufe0e\ufe0f\u20e3](?:[{_PICTURES}\ufe0e\ufe0f\u20e3\u200d])*")


def normalize(text: str) -> str:
    """The whole of a text, as `Normalizer` does it in pieces."""
    normalizer = Normalizer()
    return normalizer.feed(text) + normalizer.finish()


class Normalizer:
    """Normalises one clean text that comes in pieces; how it was split makes no difference.

    `dropped` collects emoji, and a text of which nothing is left. Raises Unprocessable, with the
    tag's name, for SSML: nothing here obeys it, and reading it aloud would be no better; what
    stands before the tag is kept, the rest of that piece of text is not.
    """

    def __init__(self) -> None:
        self.dropped: list[str] = []
        self.pausing = False  # does white space, or else the end, follow what was given out?
        self._out: list[str] = []  # on its way; outlives a feed that raises
        self._open = ""  # an atom that may not be over yet
        self._before = " "  # the character before it
        self._space = ""  # white space that goes out before the next word
        self._unsaid: list[str] = []  # what came in before anything has gone out
        self._begun = False  # has anything gone out
        self._at_start = True  # of a line, marks aside
        self._fenced = False  # in a code block, where nothing is a mark
        self._skipping = False  # the rest of a fence's line
        self._table = False  # in a line with cells
        self._cell = False  # a cell has ended

    def feed(self, text: str, *, pausing: bool = False) -> str:
        """What is certain with this text; `pausing`: white space, or else the end, follows it."""
        said = self._take(self._open + text, final=False, pausing=pausing)
        self.pausing = bool(self._space) or self._cell or (pausing and not self._open)
        return said

    def finish(self) -> str:
        """The rest."""
        rest = self._take(self._open, final=True, pausing=False)
        if not self._begun and (unsaid := "".join(self._unsaid).strip()):
            self.dropped = [unsaid]
        return rest

    def _take(self, text: str, *, final: bool, pausing: bool) -> str:
        at, self._open, most = 0, "", len(text)
        if pausing:
            text += " "  # stands for what follows, and does not count
        while at < most:
            if not final and text[at] in "![<" and _OPEN.fullmatch(text, at):
                break
            atom = _ATOM.match(text, at)
            assert atom is not None
            end = atom.end()
            if not final and end >= most and atom.lastgroup in _UNSURE[pausing]:
                break
            if not self._begun:
                self._unsaid.append(atom[0])
            self._out.append(self._atom(atom, text[end : end + 1]))
            self._before = text[end - 1]
            at = end
        self._open = text[at:most]
        said = "".join(self._out)
        self._out.clear()
        return said

    def _atom(self, atom: re.Match[str], after: str) -> str:
        """What goes out for one atom; `after` is the character that follows it."""
        kind, raw = atom.lastgroup, atom[0]
        if kind == "space":
            self._add_space(raw)
            return ""
        if self._skipping or (kind == "word" and self._is_mark(raw, after)):
            return ""
        return self._give_out(raw if self._fenced else self._read(atom, after))

    def _read(self, atom: re.Match[str], after: str) -> str:
        match kind := atom.lastgroup:
            case "word":
                return self._plain(atom[0], self._before, after)
            case "link" | "auto":
                words = re.split(r"(\s+)", atom[kind])
                return "".join(self._plain(word, " ", " ") for word in words)
            case "pipe":
                return self._pipe()
            case "tag":
                return self._tag(atom[0].lower())
            case "box" if self._at_start:
                return ""
        return atom[0]

    def _add_space(self, text: str) -> None:
        """Of white space on both sides of something that was taken out, the wider stays."""
        if text.count("\n") > self._space.count("\n") or not self._space:
            self._space = text
        if "\n" in text:
            self._at_start = True
            self._skipping = self._table = self._cell = False

    def _give_out(self, text: str) -> str:
        if not text:
            return ""
        space = ", " if self._cell else self._space if self._begun else ""
        self._space, self._begun, self._cell, self._at_start = "", True, False, False
        self._unsaid.clear()
        return space + text

    def _tag(self, tag: str) -> str:
        name = tag.strip("</>").split()[0]
        if ":" in name or name in _SSML or (name == "sub" and "alias" in tag):
            raise Unprocessable(
                f"the text holds the SSML tag <{name}>, which is not obeyed: leave it out, write "
                "pauses as punctuation, or send normalize=false to have it read as it is written",
                param="input",
                code="ssml_not_supported",
            )
        if name in _LINES:
            self._add_space("\n")
        return ""

    def _pipe(self) -> str:
        self._table = self._table or self._at_start
        if not self._table:
            return "|"
        self._cell = not self._at_start
        return ""

    def _is_mark(self, text: str, after: str) -> bool:
        """Whether a word makes its line a heading, an item, a quote, a rule or a fence."""
        if self._table and _RULE_OF_TABLE.fullmatch(text):
            return True
        if not self._at_start or (after and not after.isspace()):
            return False
        if _FENCE.fullmatch(text):
            self._fenced = not self._fenced
            self._skipping = True
            return True
        return not self._fenced and _LINE_MARK.fullmatch(text) is not None

    def _plain(self, text: str, before: str, after: str) -> str:
        """A word without marks, emoji and the machinery of an address."""
        text = _MAILTO.sub("", text)
        if (url := _URL.search(text)) is not None:
            address = url[0].rstrip(".,;:!?…'\"*_`~]}>" + ")" * ("(" not in url[0]))
            end = url.start() + len(address)
            head = self._plain(text[: url.start()], before, "x")
            return head + _read_url(address) + self._plain(text[end:], "x", after)
        text = self._without_emoji(text)
        return _MARK.sub(lambda mark: _read_mark(mark, before, after), text)

    def _without_emoji(self, text: str) -> str:
        def drop(found: re.Match[str]) -> str:
            if not found[0].strip("\ufe0e\ufe0f\u20e3"):  # only makes a picture of a letter
                return ""
            self.dropped.append(found[0])
            around = text[found.start() - 1 : found.start()] + text[found.end() : found.end() + 1]
            return " " if len(around) == 2 and around.isalnum() else ""

        return _EMOJI.sub(drop, text)


def _read_url(url: str) -> str:
    """Host and a short path: who reads an address aloud stops there."""
    parts = _URL_PARTS.match(url)
    assert parts is not None
    host, path = parts[1], parts[2].rstrip("/")
    return host + path if len(path) <= MOST_PATH and "%" not in path else host


def _read_mark(mark: re.Match[str], before: str, after: str) -> str:
    """Nothing, if a run of marks is emphasis or code; itself between spaces, figures or letters."""
    text, run = mark.string, mark[0]
    left = text[mark.start() - 1] if mark.start() else before
    right = text[mark.end()] if mark.end() < len(text) else after
    if run[0] == "`":
        return ""
    if (left.isspace() or not left) and (right.isspace() or not right):
        return run
    joined = _is_inner(left) and _is_inner(right)
    if joined and (len(run) == 1 or run[0] == "_" or (left.isdigit() and right.isdigit())):
        return run
    return ""


def _is_inner(char: str) -> bool:
    """Letters and figures of scripts with spaces, in whose words a mark is spelling."""
    return char.isalnum() and unicodedata.east_asian_width(char) not in "WF"
