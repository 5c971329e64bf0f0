"""The cap grows with the text, piece by piece, and leaves room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.text.cap import Cap, cap_frames
from vivace.types import FRAME_S


def cap_s(text: str, language: str = "auto") -> float:
    return cap_frames(text, language) * FRAME_S


@pytest.mark.parametrize("text", ["1次", "2次"])
def test_1_a_measure_phrase_stays_under_three_seconds(text: str) -> None:
    assert 2 < cap_s(text, "chinese") < 3


def test_4_a_short_recipe_line_stays_under_twelve_seconds() -> None:
    assert cap_s("用200度烤15分钟，再撒上蒜末。", "chinese") < 12


# Durations of ordinary reading, in seconds: 2.5 English words, 5 Chinese characters, 7 kana or
# Hangul syllables a second.
@pytest.mark.parametrize(
    ("text", "language", "read_s"),
    [
        ("The quick brown fox jumps over the lazy dog.", "english", 3.6),
        ("Der schnelle braune Fuchs springt über den faulen Hund.", "german", 3.8),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.", "russian", 4.2),
        ("今天天气很好，我们一起去公园散步吧。", "chinese", 3.4),
        ("きょうはいいてんきですね、こうえんへいきましょう。", "japanese", 3.4),
        ("오늘은 날씨가 좋으니 공원에 산책하러 갑시다.", "korean", 2.9),
    ],
)
def test_a_sentence_gets_two_to_five_times_its_length(
    text: str, language: str, read_s: float
) -> None:
    assert 2 * read_s < cap_s(text, language) < 5 * read_s


@pytest.mark.parametrize(
    ("text", "said_s"),
    [("Hi!", 0.5), ("42%", 1.2), ("€5", 0.8), ("WWW", 1.5), ("777,777", 3.2), ("C#", 0.7)],
)
def test_what_is_spelt_out_has_room(text: str, said_s: float) -> None:
    assert 1.5 * said_s < cap_s(text) < 7


def test_kanji_take_longer_than_hanzi() -> None:
    assert cap_frames("東京", "japanese") > cap_frames("東京", "chinese")


@given(st.lists(st.text(max_size=20), max_size=5))
def test_pieces_add_up(pieces: list[str]) -> None:
    cap = Cap("chinese")
    for piece in pieces:
        cap.add(piece)
    assert cap.frames == cap_frames("".join(pieces), "chinese")


@given(st.text(max_size=20), st.characters())
def test_more_text_never_lowers_the_cap(text: str, char: str) -> None:
    assert cap_frames(text + char) >= cap_frames(text) > 0
