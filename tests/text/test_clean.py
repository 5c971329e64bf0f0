"""What is removed, what stays, and that pieces and whole agree."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.errors import InvalidRequest, outcome
from vivace.text.clean import Cleaner, check_text, clean, speakable

# Everything the cleaner treats apart, and some text around it.
ODD = (
    "\u200b\ufeff\u00ad\u00a0\u202f\u200c\u200d\u202e\u2066\u200e\u061c\u2060\u0000\u001f\u007f"
    "\u0085\u2028\r\n\t\v \u3000ab7.می\u094dक\u0d4dന👩❤\ufe0f🏽\u2194"
)
TEXT = st.text(st.sampled_from(ODD), max_size=30)
# Halves of 😊 too, so that pairs arise and break apart.
HALVES = st.text(st.sampled_from(ODD + "\ud83d\ude0a"), max_size=12)


def feed_all(pieces: list[str]) -> str:
    cleaner = Cleaner()
    return "".join([*map(cleaner.feed, pieces), cleaner.finish()])


def outcome_of(pieces: list[str]) -> str | None:
    try:
        return feed_all(pieces)
    except InvalidRequest:
        return None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("hel\u200blo", "hello"),
        ("co\u00adoperate", "cooperate"),
        ("10\u00a0km", "10 km"),
        ("1\u202f000\u2007000", "1 000 000"),
        ("می\u200cروم", "می\u200cروم"),
        ("a\u0000b", "ab"),
        ("a\x1b[31mb\x7f\x9b", "a[31mb"),
        ("\u202eabc\u202c", "abc"),
        ("\u2066a\u2069\u200e\u200f\u061c", "a"),
        ("\ufeffHello", "Hello"),
        ("  \n a  b \t\n", "a  b"),
        ("\u3000你好\u3000", "你好"),
        ("a\r\nb\rc\u2028d\u0085e\ff", "a\nb\nc\nd\ne\nf"),
        ("a\tb\n\nc", "a\tb\n\nc"),
        ("\U000e0041a\U000e007f", "a"),
        ("", ""),
        (" \u200b\u200d ", ""),
    ],
)
def test_23_invisible_characters(raw: str, expected: str) -> None:
    assert clean(raw) == expected


@pytest.mark.parametrize(
    "kept",
    [
        "می\u200cخواهم",
        "क्\u200dष",
        "क्\u200cष",
        "അവന്\u200d പറഞ്ഞു",  # a virama at the end of a word
        "শ্\u200dর",
        "👩\u200d🚀",
        "👩🏽\u200d🚀",
        "❤\ufe0f\u200d🔥",
        "🏳\ufe0f\u200d🌈",
        "👨\u200d👩\u200d👧",
        "🙂\u200d\u2194\ufe0f",
    ],
)
def test_joiners_stay_where_they_are_spelling(kept: str) -> None:
    assert clean(kept) == kept


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("a\u200db", "ab"),
        ("\u200cمی", "می"),
        ("می\u200c", "می"),
        ("می\u200c رو", "می رو"),
        ("می \u200cرو", "می رو"),
        ("می\u200ca", "میa"),
        ("👩\u200d.", "👩."),
        ("می\u200c\u200c\u200dروم", "می\u200cروم"),
        ("می\u200b\u200c\u200bروم", "می\u200cروم"),
        ("日\u200d本", "日本"),
    ],
)
def test_joiners_go_elsewhere(raw: str, expected: str) -> None:
    assert clean(raw) == expected


@given(st.lists(TEXT, max_size=6))
def test_any_split_gives_the_same_text(pieces: list[str]) -> None:
    assert feed_all(pieces) == clean("".join(pieces))


@given(st.lists(HALVES, max_size=6))
def test_any_split_of_surrogates_gives_the_same_outcome(pieces: list[str]) -> None:
    assert outcome_of(pieces) == outcome_of(["".join(pieces)])


@given(st.text(max_size=40))
def test_clean_text_stays_as_it_is(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
    assert once == once.strip()


def test_text_comes_out_without_waiting() -> None:
    cleaner = Cleaner()
    assert [cleaner.feed(piece) for piece in ["Hello", " ", "wor", "ld", ". "]] == [
        "Hello",
        "",
        " wor",
        "ld",
        ".",
    ]
    assert cleaner.finish() == ""


def test_22_surrogate_halves_in_two_appends_meet() -> None:
    cleaner = Cleaner()
    assert cleaner.feed("a\ud83d") == "a"
    assert cleaner.feed("") == ""
    assert cleaner.feed("\ude0ab") == "😊b"
    assert cleaner.finish() == ""


@pytest.mark.parametrize("raw", [r'"a\ud800b"', r'"\udc00"', r'"\ude0a\ud83d"', r'"\ud83d"'])
def test_22_unpaired_surrogate_is_refused(raw: str) -> None:
    text = json.loads(raw)
    with pytest.raises(InvalidRequest, match="instruct") as caught:
        check_text(text, "instruct")
    assert caught.value.param == "instruct"
    assert outcome(caught.value).status == 400
    with pytest.raises(InvalidRequest):
        clean(text)


def test_22_a_refused_piece_leaves_the_cleaner_usable() -> None:
    cleaner = Cleaner()
    assert cleaner.feed("one \ud83d") == "one"
    with pytest.raises(InvalidRequest):
        cleaner.feed("lost")
    assert cleaner.feed("two") == " two"
    assert cleaner.feed("\ud83d") == ""
    with pytest.raises(InvalidRequest):
        cleaner.finish()
    assert cleaner.finish() == ""


def test_paired_surrogates_pass() -> None:
    check_text("😊 \ud83d\ude0a")
    assert clean("\ud83d\ude0a") == "😊"


PUBLIC = ["...", "—", "*", "()", "”", "😊", '😊"', "\t", "\u3000", "、。"]


@pytest.mark.parametrize("text", [*PUBLIC, "", "   ", "\n"])
def test_14_nothing_to_speak(text: str) -> None:
    assert not speakable(text)


SILENT = [
    "%",
    "€",
    "&&",
    "+",
    "#",
    "---",
    "**",
    "[]()",
    "👩\u200d🚀",
    "🇩🇪",
    "\u0301",
    "ʼ",
    "\u3164",
    "・",
    "¿",
]
SOUNDING = [
    "7",
    "42%",
    "C#",
    "a",
    "...a",
    "你",
    "を",
    "한",
    "٣",
    "½",
    "①",
    "Ⅳ",
    "№",
    "℃",
    "é",
    "e\u0301",
    "ก",
    "क",
    "ｱ",
    "１",
]


@pytest.mark.parametrize("text", SILENT)
def test_14_symbols_alone_have_no_sound(text: str) -> None:
    assert not speakable(text)


@pytest.mark.parametrize("text", SOUNDING)
def test_14_something_to_speak(text: str) -> None:
    assert speakable(text)


@given(TEXT, TEXT)
def test_speakable_by_pieces(left: str, right: str) -> None:
    assert speakable(left + right) == (speakable(left) or speakable(right))
